"""Reads OpenAI's chat messages as clients write them: in the engine, sessions, demonstrations and imports.

Clients write members that a message does not have as null or empty, leave the arguments of a call out if there are
none, and some write the forms of OpenAI's older API (`function_call`, and the role `function`) or of other vendors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of the parts of a content that are text, and the member that holds it."""
_NO_ARGUMENTS = ("", "null")


def read_messages(messages: Sequence[Json]) -> list[dict[str, Json]]:
    """Return the messages in OpenAI's present form, without empty members. A content that is not only text is kept as
    it is, and so are members that only other servers know. Raises ValueError, which names the message."""
    reader = _Reader()
    return [reader.read(message, f"message {number}") for number, message in enumerate(messages)]


def text_of(content: Json) -> str | None:
    """Return a content that is text, whole or in parts; None if it is something else."""
    if isinstance(content, str):
        return content
    texts = [_text_of_part(part) for part in content] if isinstance(content, list) else [None]
    return None if None in texts else "".join(text or "" for text in texts)


def read_call(call: Json, where: str) -> dict[str, Json]:
    """Return a tool call without members that only a stream or a parser adds. Raises ValueError."""
    function = call.get("function") if isinstance(call, dict) else None
    if function is None and isinstance(call, dict) and call.get("type") not in (None, "function"):
        return call  # of a kind that only other servers know
    name = function.get("name") if isinstance(function, dict) else None
    arguments = arguments_text(function.get("arguments")) if isinstance(function, dict) else None
    if not isinstance(name, str) or arguments is None:
        raise ValueError(f"{where}: a tool call needs function.name and function.arguments as text")
    members = {key: value for key, value in call.items() if key != "index"}
    return {**members, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_text(arguments: Json) -> str | None:
    """Return the arguments of a call as JSON text; None if they are neither text nor an object. An empty text is what
    several servers write for a call without arguments, and no chat template takes it."""
    if arguments in (None, []) or (isinstance(arguments, str) and arguments.strip() in _NO_ARGUMENTS):
        return "{}"
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments if isinstance(arguments, str) else None


def arguments_value(arguments: Json) -> Json:
    """Return the value of a call's arguments, because clients that decode them write the text with different
    formatting. What is not JSON is returned as it is."""
    try:
        return json.loads(arguments_text(arguments) or "")
    except (TypeError, ValueError, RecursionError):
        return arguments


def read_tool_choice(choice: Json) -> Json:
    """Return a choice of tools in OpenAI's form. Others write `any` for `required`, put a word into an object, or put
    the function's name beside the type."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "any":
        return "required"
    if not isinstance(choice, dict) or kind in ("none", "auto", "required"):
        return kind
    if kind in ("function", "tool") and "function" not in choice and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


@dataclass(slots=True)
class _Reader:
    """Reads the messages of one conversation. Calls of the older API have no ids: they get some, by which results
    find them."""

    calls: int = 0
    unanswered: list[tuple[str, str]] = field(default_factory=list)
    """Name and id of the older API's calls that have no result yet."""

    def read(self, message: Json, where: str) -> dict[str, Json]:
        if not isinstance(message, dict):
            raise ValueError(f"{where} must be an object")
        plain = {name: value for name, value in message.items() if value not in (None, [], {})}
        if (text := text_of(message.get("content") or plain.get("refusal"))) is not None:
            plain["content"] = text
        plain.pop("refusal", None)
        if (calls := plain.get("tool_calls")) is not None:
            listed = calls if isinstance(calls, list) else [calls]
            plain["tool_calls"] = [read_call(call, where) for call in listed]
        if (called := plain.pop("function_call", None)) is not None:
            plain.setdefault("tool_calls", [self._older_call(called, where)])
        return self._older_result(plain, where) if plain.get("role") == "function" else plain

    def _older_call(self, called: Json, where: str) -> dict[str, Json]:
        self.calls += 1
        call = read_call({"id": f"call_{self.calls}", "function": called}, where)
        self.unanswered.append((call["function"]["name"], call["id"]))
        return call

    def _older_result(self, plain: Mapping[str, Json], where: str) -> dict[str, Json]:
        call = next((call for call in self.unanswered if call[0] == plain.get("name")), None)
        if call is None:
            raise ValueError(f"{where}: no function_call before it names the function {plain.get('name')!r}")
        self.unanswered.remove(call)
        return {**plain, "role": "tool", "tool_call_id": call[1]}


def _text_of_part(part: Json) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    return text if isinstance(text, str) else None
