"""The body of a chat completion request: which fields are accepted, and how they are normalized."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.chat_reader import read_messages, read_tool_choice
from learnloop_service.training.protocol.responses.parameters import NO_EFFECT, parameter_fault, refuse_unsupported

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
_ROLES = ("system", "user", "assistant", "tool")
_MOST_TOKENS = 2**31
_CONTINUED = ("prefix", "partial")
"""Members by which clients of other vendors ask for the rest of a message that the assistant began."""
_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}

_UNSUPPORTED: Mapping[str, tuple[Json, ...]] = {
    # Parameters of OpenAI, vLLM and SGLang that would change the reply, with the values that have no effect.
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
    "chat_template_kwargs": ({},),
    "return_tokens_as_token_ids": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}


def _plain_messages(value: Json) -> list[dict[str, Json]]:
    """Convert messages to text-only content in the form that chat templates expect."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of messages, and not empty")
    return [_plain_message(message, number) for number, message in enumerate(read_messages(value))]


def _plain_message(message: Mapping[str, Json], number: int) -> dict[str, Json]:
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in _ROLES:
        raise ValueError(f"message {number} has role {role!r}; roles are {', '.join(_ROLES)}")
    if continued := next((name for name in _CONTINUED if message.get(name)), None):
        raise ValueError(f"message {number}: {continued} is not supported: a reply is always a new message")
    if not isinstance(content := message.get("content", ""), str):
        raise ValueError(f"message {number}: content must be text")
    plain = {"role": role, "content": content}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call, number) for call in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(message.get(key), str):
            plain[key] = message[key]
    if message.get("token_ids") is not None:
        plain["token_ids"] = _token_ids(message["token_ids"], role, number)
    return plain


def _token_ids(ids: Json, role: str, number: int) -> list[int]:
    if role != "assistant":
        raise ValueError(f"message {number}: only an assistant's message has token_ids")
    if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < _MOST_TOKENS for id in ids):
        raise ValueError(f"message {number}: token_ids must be a list of token ids")
    return ids


def _plain_call(call: Mapping[str, Json], number: int) -> dict[str, Json]:
    if "function" not in call:
        raise ValueError(f"message {number}: a tool call of type {call['type']!r} is not supported")
    return {"id": str(call.get("id") or ""), "type": "function", "function": call["function"]}


def _checked_tools(value: Json) -> Json:
    """Check that the tools' parameters have the structure of JSON schemas."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise ValueError("must be a list")
    names = set()
    for number, tool in enumerate(value):
        function = (
            tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        )
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError(f"tool {number} must be {{type: function, function: {{name, ...}}}}")
        if function["name"] in names:
            raise ValueError(f"two tools are named {function['name']!r}")
        names.add(function["name"])
        if function.get("description") is not None and not isinstance(function["description"], str):
            raise ValueError(f"the description of tool {function['name']!r} must be text")
        if function.get("strict") not in (None, True, False):
            raise ValueError(f"strict of tool {function['name']!r} must be true or false")
        parameters = function.get("parameters")
        if parameters is not None:
            if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
                raise ValueError(f"parameters of tool {function['name']!r} must be a JSON schema of type object")
            _check_schema(parameters, f"parameters of tool {function['name']!r}")
    return value


def _check_schema(schema: Json, where: str) -> None:
    """Raise ValueError unless `schema` has the structure of a JSON schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{where}: a schema must be an object, not {schema!r}")
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValueError(f"{where}: {kind!r} is no JSON schema type")
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        children = schema.get(key, {})
        if not isinstance(children, dict):
            raise ValueError(f"{where}.{key} must be an object")
        for name, child in children.items():
            _check_schema(child, f"{where}.{key}.{name}")
    for key in ("items", "additionalProperties", "not"):
        if key in schema:
            _check_schema(schema[key], f"{where}.{key}")
    for key in ("anyOf", "oneOf", "allOf"):
        children = schema.get(key, [])
        if not isinstance(children, list):
            raise ValueError(f"{where}.{key} must be a list")
        for number, child in enumerate(children):
            _check_schema(child, f"{where}.{key}[{number}]")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{where}.required must be a list of names")
    if not isinstance(schema.get("enum", []), list):
        raise ValueError(f"{where}.enum must be a list")


def _stop_list(value: Json) -> Json:
    return [value] if isinstance(value, str) else value or []


class StreamOptions(BaseModel):
    """Options of a streamed reply."""

    include_usage: bool = False


class JsonSchema(BaseModel):
    """A JSON schema for the reply."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None
    schema_: dict[str, Json] = Field(alias="schema")
    strict: bool | None = None

    @field_validator("schema_", mode="after")
    @classmethod
    def _shaped(cls, value: dict[str, Json]) -> dict[str, Json]:
        _check_schema(value, "schema")
        return value


class ResponseFormat(BaseModel):
    """The required form of the reply. A `json_schema` is enforced whether or not it says `strict`. Other members are
    refused, because they would be ignored."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_schema_inside(cls, value: Json) -> Json:
        """Other servers take a schema beside the type, which is then `json_schema` or `json_object`."""
        if not isinstance(value, dict) or value.get("type") not in ("json_object", "json_schema"):
            return value
        plain = {name: member for name, member in value.items() if member is not None}
        if "schema" in plain and "json_schema" not in plain:
            moved = {name: plain.pop(name) for name in ("name", "schema", "strict") if name in plain}
            plain["json_schema"] = {"name": "reply", **moved}
        return plain | ({"type": "json_schema"} if "json_schema" in plain else {})

    @model_validator(mode="after")
    def _named_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise parameter_fault("response_format", "response_format of type json_schema needs json_schema")
        if self.type == "text" and self.json_schema is not None:
            raise parameter_fault("response_format", "response_format of type text takes no json_schema")
        return self


class EngineChatRequest(BaseModel):
    """A chat completion request. A parameter that would have an effect but is not supported is refused by name, unless
    its value is the neutral one."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str
    messages: Annotated[list[dict[str, Json]], BeforeValidator(_plain_messages)]
    tools: Annotated[list[dict[str, Json]] | None, BeforeValidator(_checked_tools)] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Json] | None, BeforeValidator(read_tool_choice)
    ] = None
    response_format: ResponseFormat | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Number of most likely tokens to sample from. 0 and -1 mean no limit, as in vLLM."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_stop_list)] = Field(
        default=[], max_length=16
    )
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    """Whether a reply can have several tool calls. False ends it after the first."""
    return_token_ids: bool | None = None
    """Whether to return token ids as vLLM does: `prompt_token_ids` in the completion or its first chunk, and
    `token_ids` in its choices."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Json) -> Json:
        refuse_unsupported(value, cls.model_fields, _UNSUPPORTED, NO_EFFECT)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> "EngineChatRequest":
        names = [tool["function"]["name"] for tool in self.tools or []]
        if isinstance(self.tool_choice, dict):
            function = self.tool_choice.get("function")
            named = function.get("name") if isinstance(function, dict) else None
            if named not in names:
                raise parameter_fault("tool_choice", f"tool_choice names {named!r}, which is not among the tools")
        if self.tool_choice == "required" and not names:
            raise parameter_fault("tool_choice", "tool_choice is required but there are no tools")
        if self.top_logprobs and not self.logprobs:
            raise parameter_fault("top_logprobs", "top_logprobs needs logprobs")
        return self

    @property
    def offered_tools(self) -> list[dict[str, Json]] | None:
        """The tools shown to the model. With tool_choice none there are none, because the model must not call any."""
        return None if self.tool_choice == "none" else self.tools

    @property
    def only_one_call(self) -> bool:
        """Whether the reply ends after its first tool call."""
        return self.parallel_tool_calls is False and self.offered_tools is not None
