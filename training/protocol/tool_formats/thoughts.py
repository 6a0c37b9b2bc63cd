"""Finds the thoughts that models write before or between the parts of a reply. Calls in them are text, and are not
executed."""

import re
from collections.abc import Callable
from dataclasses import replace

from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCalls

THOUGHT_MARKS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
"""The marks that open thoughts in known model families, each with the mark that closes them."""
_OPEN = re.compile("|".join(map(re.escape, THOUGHT_MARKS)))
_CLOSE = re.compile("|".join(map(re.escape, THOUGHT_MARKS.values())))
_OF_MESSAGES = ("<|channel|>", "<|end|>")
"""Marks around messages of any kind, not only thoughts: after the first mark, the second need not end a thought."""
_EITHER = re.compile("|".join(map(re.escape, (*THOUGHT_MARKS, *THOUGHT_MARKS.values()))))
_PLACE = re.compile("\ufdd2([0-9]+)\ufdd3")
"""Placeholder for a thought while calls are looked for, with characters that no text has."""


def opens_thought(prompt: str) -> bool:
    """Return whether a reply to the prompt begins inside a thought, because the chat template opens it."""
    return any(prompt.rstrip().endswith(mark) for mark in THOUGHT_MARKS)


def thoughts(text: str, *, opened: bool = False) -> list[tuple[int, int]]:
    """Return where the thoughts of a reply begin and end. One without an end reaches to the end of the text.

    A reply can begin inside a thought: if it is `opened`, or if a closing mark comes first.
    """
    spans: list[tuple[int, int]] = []
    position = 0
    first, close = _OPEN.search(text), _CLOSE.search(text)
    begun, ended = _OF_MESSAGES
    if close and not opened and close[0] == ended and begun in text[: close.start()]:
        close = None
    if opened or (close and (first is None or close.start() < first.start())):
        position = close.end() if close else len(text)
        spans.append((0, position))
    while opening := _OPEN.search(text, position):
        closing = THOUGHT_MARKS[opening[0]]
        end = text.find(closing, opening.end())
        position = end + len(closing) if end >= 0 else len(text)
        spans.append((opening.start(), position))
    return spans


def without_thoughts(text: str, *, opened: bool = False) -> str:
    """Return the text without its thoughts."""
    position, rest = 0, ""
    for start, end in thoughts(text, opened=opened):
        rest, position = rest + text[position:start], end
    return rest + text[position:]


def find_outside(text: str, find: Callable[[str], WrittenCalls], *, opened: bool = False) -> WrittenCalls:
    """Find the calls outside of thoughts, which stay in the content. Marks of thoughts in the arguments of calls are
    text there."""
    spans = thoughts(text, opened=opened)
    if not spans:
        return find(text)
    if not opened:
        plain = find(text)
        if len(_EITHER.findall(text)) == sum(len(_EITHER.findall(call.arguments)) for call in plain.calls):
            return plain
    before = spans.pop(0)[1] if not text[: spans[0][0]].strip() else 0
    pieces, position = [], before
    for number, (start, end) in enumerate(spans):
        pieces += [text[position:start], f"\ufdd2{number}\ufdd3"]
        position = end
    written = find("".join([*pieces, text[position:]]))

    def restored(part: str) -> str:
        return _PLACE.sub(lambda match: text.__getitem__(slice(*spans[int(match[1])])), part)

    calls = tuple(replace(call, arguments=restored(call.arguments)) for call in written.calls)
    return replace(written, calls=calls, content=text[:before] + restored(written.content))
