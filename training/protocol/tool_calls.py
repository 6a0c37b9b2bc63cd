"""Reads the tool calls that a model wrote in the Hermes format."""

import hashlib
import json
import re
from dataclasses import dataclass

PARSER = "hermes"
"""Name of the parser."""
_OPEN, _CLOSE = re.compile(r"<tool_call>[ \t\r\n]*"), re.compile(r"[ \t\r\n]*</tool_call>")
_COLON = re.compile(r"\s*:\s*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model wrote it. `arguments` is its JSON text, character for character."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The content of a sampled text. `content` is None if there are only calls."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]


def read(text: str, *, call_seed: str = "") -> Reply:
    """Extract Hermes-style calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, from a sampled text.

    A mark inside a string of a call's JSON is text. If any call is malformed, the whole text is content, so that
    the caller sees what the model wrote. Ids of calls are digests of `call_seed`, the text and their position.
    """
    calls: list[ToolCall] = []
    content, position = "", 0
    while opening := _OPEN.search(text, position):
        call = _read_call(text, opening.end())
        closing = _CLOSE.match(text, call.end) if call else None
        if call is None or closing is None:
            return Reply(text, ())
        digest = hashlib.sha256(f"{call_seed}\n{len(calls)}\n{text}".encode()).hexdigest()
        calls.append(ToolCall(f"call_{digest[:24]}", call.name, call.arguments))
        content += text[position : opening.start()]
        position = closing.end()
    content += text[position:]
    if "</tool_call>" in content:
        return Reply(text, ())
    return Reply(content.strip() or None, tuple(calls)) if calls else Reply(text, ())


@dataclass(frozen=True, slots=True)
class _WrittenCall:
    """A call with its `arguments` as written. The call's JSON ends at `end`."""

    name: str
    arguments: str
    end: int


def _read_call(text: str, start: int) -> _WrittenCall | None:
    """Read the call whose JSON begins there, or return None if it is malformed."""
    try:
        call, end = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        return None
    return _WrittenCall(call["name"], _written(text[start:end], "arguments"), end)


def _refuse(constant: str) -> None:
    """Refuse a constant: Python reads NaN and Infinity, but JSON has neither."""
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)


def _written(text: str, key: str) -> str:
    """Return the text of the value of a key in a valid JSON object. If the key is repeated, the last one counts."""
    found, position = "", text.index("{") + 1
    while (quote := text.find('"', position)) >= 0:
        name, position = _JSON.raw_decode(text, quote)
        colon = _COLON.match(text, position)
        start = colon.end() if colon else position
        _, position = _JSON.raw_decode(text, start)
        if name == key:
            found = text[start:position]
    return found
