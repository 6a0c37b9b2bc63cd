"""Schemas of `/v1/messages`, for the OpenAPI file only: requests are validated when they are translated."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from learnloop_service.environment.json_type import Json


class _Anthropic(BaseModel):
    """Anthropic's objects can have further members."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class MessagesRequest(_Anthropic):
    """A message to create, as in Anthropic's API. Parameters that are not supported are refused by name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "learnloop/tiny",
                    "messages": [{"role": "user", "content": "On which day is the launch of Masibe?"}],
                    "max_tokens": 64,
                }
            ]
        }
    )

    model: str
    """Name of the model: a base model, a run id, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    messages: list[dict[str, Json]] = Field(min_length=1)
    """The conversation so far, in Anthropic's form: text, uses of tools and their results."""
    max_tokens: int = Field(ge=1)
    """Maximum number of tokens to generate."""
    system: str | list[dict[str, Json]] | None = None
    """What stands before the conversation."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; 0 always takes the most likely token. Default: 1."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the most likely tokens that together have this probability. Default: 1."""
    top_k: int | None = None
    """Sample from this many most likely tokens. Default: from all."""
    stop_sequences: list[str] | None = None
    """Texts at which the reply ends."""
    stream: bool = False
    """Whether to stream the message as server-sent events."""
    tools: list[dict[str, Json]] | None = None
    """Functions that the model can call, in Anthropic's form. Its built-in tools are not supported."""
    tool_choice: dict[str, Json] | None = None
    """Whether the model has to call a function, and which. Default: `auto` if there are tools."""


class CountTokensRequest(_Anthropic):
    """A message whose prompt is to be counted, as in Anthropic's API."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "learnloop/tiny", "messages": [{"role": "user", "content": "On which day?"}]}]
        }
    )

    model: str
    """Name of the model, as for `POST /v1/messages`."""
    messages: list[dict[str, Json]] = Field(min_length=1)
    """The conversation so far, in Anthropic's form: text, uses of tools and their results."""
    system: str | list[dict[str, Json]] | None = None
    """What stands before the conversation."""
    tools: list[dict[str, Json]] | None = None
    """Functions that the model can call, in Anthropic's form."""
    tool_choice: dict[str, Json] | None = None
    """Whether the model has to call a function, and which."""


class TokenCount(_Anthropic):
    """How long a prompt is, as in Anthropic's API."""

    input_tokens: int
    """Number of tokens of the prompt, as the model's chat template makes it, with the tools."""


class MessageObject(_Anthropic):
    """A message, as in Anthropic's API."""

    id: str
    """Id of the message."""
    type: Literal["message"]
    """Always `message`."""
    role: Literal["assistant"]
    """Always `assistant`."""
    model: str
    """The exact checkpoint that replied, as `PROJECT/NAME@STEP`, or the base model."""
    content: list[dict[str, Json]]
    """What the model said and which functions it called, as blocks in Anthropic's form."""
    stop_reason: str | None
    """`end_turn`, `max_tokens`, `stop_sequence` or `tool_use`."""
    stop_sequence: str | None = None
    """The one of `stop_sequences` that ended the message."""
    usage: dict[str, Json]
    """Number of tokens of the prompt and of the reply."""
