"""Tool calls in a sampled text, before they get ids, and the JSON objects that most formats write them as."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_COLON = re.compile(r"\s*:\s*")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call. `arguments` is its JSON text as written, character for character."""

    name: str
    arguments: str
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Arguments that were written without JSON, by name. They are strings if the tool says so."""


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """The calls of a text in order, and the text around them. `malformed` says why something that looks like a call
    cannot be read; there are no calls then."""

    calls: tuple[WrittenCall, ...] = ()
    content: str = ""
    malformed: str | None = None


class MalformedCall(ValueError):
    """The text is an attempt at a call that cannot be read. The message is a sentence that says why."""


def call_at(text: str, start: int, keys: Collection[str]) -> tuple[WrittenCall, int]:
    """Return the call whose JSON object begins at `start`, and where the object ends. `keys` are the names that its
    arguments can have. Raises MalformedCall."""
    try:
        call, end = JSON.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"A call is not valid JSON: {reason(error)}.") from None
    return as_call(call, text[start:end], keys), end


def as_call(call: object, text: str, keys: Collection[str]) -> WrittenCall:
    """Return the call that a parsed JSON value with that text is. Raises MalformedCall."""
    if not isinstance(call, dict):
        raise MalformedCall("A call is not a JSON object.")
    if not isinstance(call.get("name"), str):
        raise MalformedCall("A call has no name.")
    key = next((key for key in keys if key in call), None)
    if key is None:
        raise MalformedCall(f"The call of {call['name']} has no {' or '.join(sorted(keys))}.")
    if not isinstance(call[key], dict):
        raise MalformedCall(f"The {key} of {call['name']} are not a JSON object.")
    return WrittenCall(call["name"], value_text(text, key))


def of_texts(name: str, texts: Mapping[str, str], strings: Collection[str] = ()) -> WrittenCall:
    """Return a call whose arguments were written without JSON. Values of `strings`, and those that are not JSON, become
    JSON strings."""
    values = (f"{json.dumps(key)}: {_json_of(text, key in strings)}" for key, text in texts.items())
    return WrittenCall(name, f"{{{', '.join(values)}}}", texts)


def _json_of(text: str, is_string: bool) -> str:
    if not is_string:
        try:
            JSON.decode(text)
        except (ValueError, RecursionError):
            pass
        else:
            return text.strip()
    return json.dumps(text, ensure_ascii=False)


def value_text(text: str, key: str) -> str:
    """Return the text of the value of a key in a valid JSON object. If the key is repeated, the last one counts."""
    value, position = "", text.index("{") + 1
    while (quote := text.find('"', position)) >= 0:
        name, position = JSON.raw_decode(text, quote)
        colon = _COLON.match(text, position)
        start = colon.end() if colon else position
        _, position = JSON.raw_decode(text, start)
        if name == key:
            value = text[start:position]
    return value


def reason(error: Exception) -> str:
    """Return why a text is not JSON, as a clause."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"
    return str(error) or "it is nested too deeply"


def _refuse(constant: str) -> None:
    """Refuse a constant: Python reads NaN and Infinity, but JSON has neither."""
    raise ValueError(f"{constant} is not JSON")


JSON = json.JSONDecoder(parse_constant=_refuse)
