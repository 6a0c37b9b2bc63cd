"""Calls between marks, as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

import re

from training.protocol.tool_formats.written_calls import MalformedCall, WrittenCalls, call_at

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_OPEN, _CLOSE = re.compile(rf"{OPENING}[ \t\r\n]*"), re.compile(rf"[ \t\r\n]*{CLOSING}")
_UNMARKED = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:')


def find(text: str) -> WrittenCalls:
    """Find the calls. Their form is read strictly: a model that can write it is to learn to write it exactly.

    A mark inside a string of a call's JSON is text.
    """
    calls = []
    content, position = "", 0
    try:
        while opening := _OPEN.search(text, position):
            call, end = call_at(text, opening.end(), ("arguments",))
            closing = _CLOSE.match(text, end)
            if closing is None:
                raise MalformedCall(f"The call of {call.name} does not end with {CLOSING}.")
            calls.append(call)
            content += text[position : opening.start()]
            position = closing.end()
        content += text[position:]
        if CLOSING in content:
            raise MalformedCall(f"{CLOSING} stands where no call ends.")
        if not calls and _UNMARKED.search(text):
            raise MalformedCall(f"A call does not stand between {OPENING} and {CLOSING}.")
    except MalformedCall as error:
        return WrittenCalls(malformed=str(error))
    return WrittenCalls(tuple(calls), content)
