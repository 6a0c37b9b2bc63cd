"""Calls as JSON objects in the text, bare or in a code fence, as models without marks for calls write them.

Reading is tolerant where it cannot be wrong: of fences and marks around a call, also if their end is missing, and of
braces that are doubled because the example in a chat template has them doubled. An object counts as a call only if it
has a name and arguments and nothing else, so that tools which a reply merely repeats are not called.
"""

import json
import re
from collections.abc import Collection

from learnloop_service.training.protocol.tool_formats.written_calls import (
    JSON,
    MalformedCall,
    WrittenCall,
    WrittenCalls,
    as_call,
    call_at,
)

_WRAPPERS = re.compile(
    r"```[a-z_]*[ \t]*|</?(?:tool_call|tool_calls|tools|function_call)>|<\|(?:python_tag|tool_call)\|>"
)
_CALL = re.compile(r'\{\s*(?P<doubled>\{\s*)?"(?:name|arguments|parameters)"\s*:')
_LIST = re.compile(r'\[\s*\{\s*"(?:name|arguments|parameters)"\s*:')
_ARGUMENTS = ("arguments", "parameters")
_SPARE = re.compile(r"\s*\}{1,2}")
"""The spare closing braces after an object whose braces are doubled."""


def find(text: str, keys: Collection[str], separator: str = "") -> WrittenCalls:
    """Find the calls. `keys` are the names that their arguments can have, `separator` may stand between two calls."""
    calls: list[WrittenCall] = []
    content, position = "", 0
    try:
        while (match := _next(text, position)) is not None:
            start, end, more = _read(text, match, keys)
            calls += more
            between = text[position:start]
            content += "" if separator and calls and between.strip() == separator else between
            position = end
        content = _WRAPPERS.sub("", content + text[position:])
        if not calls:
            _require_no_attempt(content, text)
    except MalformedCall as error:
        return WrittenCalls(malformed=str(error))
    return WrittenCalls(tuple(calls), content.rstrip(separator) if separator else content)


def _next(text: str, position: int) -> "re.Match[str] | None":
    """Return the next place that looks like a call or a list of calls."""
    matches = [match for pattern in (_CALL, _LIST) if (match := pattern.search(text, position))]
    return min(matches, key=lambda match: match.start(), default=None)


def _read(text: str, match: "re.Match[str]", keys: Collection[str]) -> tuple[int, int, list[WrittenCall]]:
    """Return where the calls begin and end, and the calls; none if it is another JSON object. Raises MalformedCall."""
    start = match.start()
    if match.re is _CALL and match["doubled"]:
        call, end = call_at(text, text.index("{", start + 1), keys)
        spare = _SPARE.match(text, end)
        return start, spare.end() if spare else end, [call]
    try:
        value, end = JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        call_at(text, start, keys)  # says why
        raise
    if not all(map(_is_attempt, value if isinstance(value, list) else [value])):
        return end, end, []  # other JSON: it stays content
    if isinstance(value, list):
        return start, end, _read_list(text, start, len(value), keys)
    return start, end, [as_call(value, text[start:end], keys)]


def _read_list(text: str, start: int, count: int, keys: Collection[str]) -> list[WrittenCall]:
    """Return the calls of a list that begins there. Raises MalformedCall."""
    calls, position = [], start
    for _ in range(count):
        call, position = call_at(text, text.index("{", position), keys)
        calls.append(call)
    return calls


def _is_attempt(value: object) -> bool:
    """Whether a JSON value is meant as a call: an object with a name and arguments, and nothing that describes it."""
    return (
        isinstance(value, dict)
        and value.keys() <= {"name", "id", "type", *_ARGUMENTS}
        and "name" in value
        and not value.keys().isdisjoint(_ARGUMENTS)
    )


def _require_no_attempt(content: str, text: str) -> None:
    """Raise MalformedCall if a text without calls begins like one."""
    rest = content.strip()
    if not rest and text.strip():
        raise MalformedCall("The reply has marks of a call, but no call.")
    if rest[:1] in ("{", "["):
        try:
            json.loads(rest)
        except (ValueError, RecursionError):
            raise MalformedCall("The reply begins like a call, but is not valid JSON.") from None
