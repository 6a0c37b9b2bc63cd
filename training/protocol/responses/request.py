"""The body of a Responses request: what is accepted, and its conversion to a chat completion."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.responses.items import Item, messages_of
from learnloop_service.training.protocol.responses.parameters import (
    NO_EFFECT,
    BadParameter,
    hint_warning,
    hosted_tool_warnings,
    refuse_unsupported,
)
from learnloop_service.training.protocol.responses.tools import OfferedTools, offered_name, offered_tools

_SAME = (
    "model",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "top_logprobs",
)
"""Parameters with the same name in chat completions."""
CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Chat completion parameters that have another name here."""
_UNSUPPORTED: Mapping[str, tuple[Json, ...]] = {
    # Unsupported parameters, with the values that request nothing.
    "background": (False,),
    "truncation": ("disabled",),
}
_NO_EFFECT = NO_EFFECT | {"max_tool_calls", "stream_options"}
"""`max_tool_calls` counts calls of built-in tools, which do not exist here; `stream_options` is about padding."""
_Included = Literal[
    "message.output_text.logprobs",
    # Results of built-in tools, images and reasoning. There are none, so nothing is included.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class TextOptions(BaseModel):
    """The required format of a response's text. How verbose it is to be is a hint without effect."""

    format: dict[str, Json] | None = None
    verbosity: str | None = None


class ResponsesRequest(BaseModel):
    """A request for a response. As in ChatRequest, parameters that would be ignored are rejected by name."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str
    input: str | list[dict[str, Json]] = Field(min_length=1)
    instructions: str | None = None
    tools: list[dict[str, Json]] | None = None
    tool_choice: Json = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: Json = None
    top_p: Json = None
    top_k: Json = None
    min_p: Json = None
    seed: Json = None
    top_logprobs: Json = None
    text: TextOptions | None = None
    include: list[_Included] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    stream: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Json) -> Json:
        refuse_unsupported(value, cls.model_fields, _UNSUPPORTED, _NO_EFFECT)
        return value

    @property
    def items(self) -> list[Item]:
        """The input as a list of items."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else list(self.input)

    @cached_property
    def offered(self) -> OfferedTools:
        """The tools that the model is offered. Raises BadParameter."""
        return offered_tools(self.tools or ())

    @property
    def warnings(self) -> list[str]:
        """Sentences about tools and options of the text that have no effect."""
        verbose = [hint_warning("text.verbosity")] if self.text and self.text.verbosity else []
        return [*verbose, *hosted_tool_warnings(self.offered.left_out)]

    @property
    def logprobs(self) -> bool:
        """Whether the text has log-probabilities."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)

    def chat_body(self, items: Sequence[Item]) -> dict[str, Json]:
        """Return the chat completion for the response; `items` are the whole conversation. Raises BadParameter."""
        try:
            messages = messages_of(items, self.instructions)
        except ValueError as error:
            raise BadParameter(f"input: {error}", param="input", code="invalid_value") from None
        body = {
            **{name: value for name in _SAME if (value := getattr(self, name)) is not None},
            "messages": messages,
            "tools": list(self.offered.functions),
            "max_completion_tokens": self.max_output_tokens,
            "response_format": _response_format(self.text.format if self.text else None),
            "logprobs": self.logprobs,
            "stream_options": {"include_usage": True},
        }
        if isinstance(self.tool_choice, dict):
            body["tool_choice"] = _named_tool(self.tool_choice)
        return body


def _named_tool(choice: Mapping[str, Json]) -> dict[str, Json]:
    if choice.get("type") != "function":
        message = f"tool_choice: {choice.get('type')!r} is not supported; name a function, or none, auto or required"
        raise BadParameter(message, param="tool_choice")
    return {"type": "function", "function": {"name": offered_name(str(choice.get("name")), choice.get("namespace"))}}


def _response_format(text_format: Mapping[str, Json] | None) -> dict[str, Json] | None:
    """Return a response format for chat completions, where a schema's fields are nested one level deeper."""
    if text_format is None or text_format.get("type") != "json_schema":
        return None if text_format is None else dict(text_format)
    schema = {key: value for key, value in text_format.items() if key != "type"}
    return {"type": "json_schema", "json_schema": schema}
