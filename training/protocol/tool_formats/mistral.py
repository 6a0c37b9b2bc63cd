"""Calls after Mistral's mark: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or of newer models
`[TOOL_CALLS]NAME[ARGS]{...}`, a mark before each."""

import re
from collections.abc import Iterator

from learnloop_service.training.protocol.tool_formats.written_calls import (
    JSON,
    MalformedCall,
    WrittenCall,
    WrittenCalls,
    call_at,
)

OPENING = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")


def find(text: str) -> WrittenCalls:
    """Find the calls. What stands before the first mark is content; nothing may follow the calls."""
    content, *parts = text.split(OPENING) if OPENING in text else (text,)
    if not parts:
        return WrittenCalls(content=text)
    try:
        # A mark inside a string of a call's JSON is text, so the parts are read together.
        return WrittenCalls(tuple(_calls(text[len(content) :])), content)
    except MalformedCall as error:
        return WrittenCalls(malformed=str(error))


def _calls(text: str) -> Iterator[WrittenCall]:
    position = 0
    while position < len(text):
        if not text.startswith(OPENING, position):
            raise MalformedCall("There is text after the calls.")
        position = _after_space(text, position + len(OPENING))
        if text[position : position + 1] == "[":
            while text[position : position + 1] in ("[", ","):
                call, position = call_at(text, _after_space(text, position + 1), ("arguments",))
                yield call
                position = _after_space(text, position)
            if text[position : position + 1] != "]":
                raise MalformedCall("The list of calls does not end with ].")
            position += 1
        else:
            call, position = _named_call(text, position)
            yield call
        position = _after_space(text, position)


def _named_call(text: str, position: int) -> tuple[WrittenCall, int]:
    if (named := _NAMED.match(text, position)) is None:
        raise MalformedCall(f"No call follows {OPENING}.")
    try:
        _, end = JSON.raw_decode(text, named.end())
    except (ValueError, RecursionError):
        raise MalformedCall(f"The arguments of {named['name']} are not a JSON object.") from None
    return WrittenCall(named["name"], text[named.end() : end]), end


def _after_space(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position
