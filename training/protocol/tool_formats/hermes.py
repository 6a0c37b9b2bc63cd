"""Calls between marks, as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Families whose templates show another text between the same marks are read as well: Qwen3-Coder's
`<function=NAME><parameter=KEY>VALUE</parameter></function>`, and GLM's
`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
"""

import re

from learnloop_service.training.protocol.tool_formats.written_calls import (
    MalformedCall,
    WrittenCall,
    WrittenCalls,
    call_at,
    of_texts,
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_OPEN, _CLOSE = re.compile(rf"{OPENING}[ \t\r\n]*"), re.compile(rf"[ \t\r\n]*{CLOSING}")
_FUNCTION = re.compile(r"<function=(?P<name>[^>\n]+)>(?P<body>.*?)</function>", re.DOTALL)
_NAMED = re.compile(
    rf"(?<=>)(?P<name>[\w.-]+)(?:\s*(?=<arg_key>)|\n(?={CLOSING}))"
    rf"(?P<body>(?:<arg_key>.*?</arg_value>\s*)*)(?={CLOSING})",
    re.DOTALL,
)
"""A call without arguments has its name right behind the mark, and a line's end after it."""
_PARAMETER = re.compile(r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)
JSON_CALL = re.compile(rf"{OPENING}\s*(?:\{{|\Z)")
"""The beginning of a call as JSON, which can be cut off right after its mark."""
_UNMARKED = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:')


def find(text: str) -> WrittenCalls:
    """Find the calls. Their form is read strictly: a model that can write it is to learn to write it exactly.

    A mark inside a string of a call's JSON is text.
    """
    calls = []
    content, position = "", 0
    try:
        while opening := _OPEN.search(text, position):
            call, end = _call(text, opening.end())
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


def _call(text: str, start: int) -> tuple[WrittenCall, int]:
    """Return the call that begins there, and where it ends. Raises MalformedCall."""
    for form, argument in ((_FUNCTION, _PARAMETER), (_NAMED, _ARGUMENT)):
        if (match := form.match(text, start)) is not None:
            values = {pair["key"].strip(): pair["value"] for pair in argument.finditer(match["body"])}
            if argument.sub("", match["body"]).strip():
                raise MalformedCall(f"There is text between the arguments of {match['name']}.")
            return of_texts(match["name"], values), match.end()
    return call_at(text, start, ("arguments",))
