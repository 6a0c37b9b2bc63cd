"""Demonstrations: conversations to imitate, one per line, in the format of OpenAI's fine-tuning files."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from learnloop_service.app.db.json_text import flaw
from learnloop_service.app.schemas.base import RequestPart
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol import strict_json
from learnloop_service.training.protocol.chat_reader import arguments_text, read_messages
from learnloop_service.training.protocol.validation_message import message_of

_NAMED_FAULTS = 5
_LOGGED = frozenset({"annotations", "index", "parsed", "provider_specific_fields"})
"""Members that clients log with a message and that no model sees."""


class BadDemonstrations(ValueError):
    """The file is not a valid set of demonstrations; the message names lines and fields."""


class _Part(RequestPart):
    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Json) -> Json:
        """Drop null fields, because clients write them for everything that a message does not have."""
        return (
            {key: content for key, content in value.items() if content is not None}
            if isinstance(value, dict)
            else value
        )


def _without_nulls(value: Json) -> Json:
    """Drop null fields at any depth. Data sets that went through Arrow have one for each field of another row."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


class _Text(_Part):
    type: Literal["text"]
    text: str


_Content = Annotated[
    Annotated[str, Tag("one text")] | Annotated[list[_Text], Field(min_length=1), Tag("parts of a text")],
    Discriminator(lambda value: "parts of a text" if isinstance(value, list) else "one text"),
]


class _Function(_Part):
    name: str = Field(min_length=1)
    arguments: str

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments_as_text(cls, value: Json) -> Json:
        """Convert arguments that a tool wrote as an object, or left out, to JSON text, which is the API's format."""
        text = arguments_text(_without_nulls(value))
        return value if text is None else text

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        try:
            arguments = strict_json.loads(value.encode())
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise ValueError("expected the text of a JSON object")
        return value


class _Call(_Part):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: _Function


class _Input(_Part):
    role: Literal["system", "developer", "user"]
    content: _Content
    name: str | None = None


class _Tool(_Part):
    role: Literal["tool"]
    content: _Content
    tool_call_id: str
    name: str | None = None


class _Assistant(_Part):
    role: Literal["assistant"]
    content: _Content | None = None
    tool_calls: Annotated[list[_Call], Field(min_length=1)] | None = None
    weight: Literal[0, 1] | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.content and not self.tool_calls:
            raise ValueError("the message has neither content nor tool_calls")
        return self


_KINDS = dict.fromkeys(("system", "developer", "user"), "a message") | {"assistant": "a reply", "tool": "a result"}


def _kind(message: Json) -> str | None:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return _KINDS.get(role) if isinstance(role, str) else None


_Message = Annotated[
    Annotated[_Input, Tag("a message")] | Annotated[_Assistant, Tag("a reply")] | Annotated[_Tool, Tag("a result")],
    Discriminator(
        _kind,
        custom_error_type="role",
        custom_error_message="expected an object with the role system, developer, user, assistant or tool",
    ),
]


class _ToolFunction(_Part):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Annotated[dict[str, Json], BeforeValidator(_without_nulls)] | None = None
    strict: bool | None = None


class _OfferedTool(_Part):
    type: Literal["function"]
    function: _ToolFunction


class _Demonstration(_Part):
    messages: list[_Message] = Field(min_length=1)
    tools: list[_OfferedTool] | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _as_chats_take_them(cls, value: Json) -> Json:
        """Read the messages as a chat does. Others stay as they are, so that validation names the field at fault."""
        try:
            read = read_messages(_without_nulls(value))
        except (TypeError, ValueError):
            return value
        return [{name: content for name, content in message.items() if name not in _LOGGED} for message in read]

    @model_validator(mode="before")
    @classmethod
    def _with_older_functions(cls, value: Json) -> Json:
        """Read the functions of OpenAI's older files as tools."""
        older = value.get("functions") if isinstance(value, dict) else None
        if not isinstance(older, list) or value.get("tools"):
            return value
        tools = [{"type": "function", "function": function} for function in older]
        return {name: content for name, content in value.items() if name != "functions"} | {"tools": tools}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not any(isinstance(turn, _Assistant) and turn.weight != 0 for turn in self.messages):
            raise ValueError("there is no assistant message to learn")
        offered = {tool.function.name for tool in self.tools or ()}
        called: set[str] = set()
        for number, message in enumerate(self.messages):
            if isinstance(message, _Tool) and message.tool_call_id not in called:
                raise ValueError(f"messages.{number}.tool_call_id: no call before has the id {message.tool_call_id!r}")
            for call in (message.tool_calls or ()) if isinstance(message, _Assistant) else ():
                if call.function.name not in offered:
                    raise ValueError(f"messages.{number}.tool_calls: {call.function.name!r} is not one of the tools")
                called.add(call.id)
        return self


def read_demonstrations(content: bytes) -> list[dict[str, Json]]:
    """Parse demonstrations from a JSON Lines file, each with `messages` and possibly `tools`. Empty lines are skipped.

    Raises BadDemonstrations, which names the first faults by line and field.
    """
    demonstrations: list[dict[str, Json]] = []
    faults: list[str] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            demonstrations.append(checked(_object(line)))
        except ValidationError as error:
            faults += (f"line {number}: {fault}" for fault in faults_of(error))
        except ValueError as error:
            faults.append(f"line {number}: {error}")
        if len(faults) >= _NAMED_FAULTS:
            break
    if faults:
        raise BadDemonstrations("; ".join(faults[:_NAMED_FAULTS]))
    if not demonstrations:
        raise BadDemonstrations("the file is empty; expected JSON Lines with messages and tools")
    return demonstrations


def checked(value: Json) -> dict[str, Json]:
    """Return a demonstration with the fields that are stored. Raises ValidationError, a ValueError."""
    demonstration: dict[str, Json] = _Demonstration.model_validate(value).model_dump(
        exclude_none=True, exclude={"parallel_tool_calls"}
    )
    return demonstration


def _object(line: bytes) -> dict[str, Json]:
    """Parse a line. Raises ValueError."""
    try:
        value = strict_json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object with messages and tools")
    if (why := flaw(value)) is not None:
        raise ValueError(why)
    return value


def faults_of(error: ValidationError) -> Iterator[str]:
    """Yield the faults of a demonstration, each with the field that it is in."""
    for fault in error.errors(include_url=False, include_input=False):
        # Union tags contain a space, field names do not.
        field = ".".join(str(part) for part in fault["loc"] if " " not in str(part))
        yield f"{field}: {message_of(fault)}" if field else message_of(fault)
