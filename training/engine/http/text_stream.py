"""Determines which part of the text of a reply can be shown while it is still being sampled."""

from collections.abc import Sequence

from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.tool_formats.thoughts import thoughts


class TextStream:
    """Turns token ids into text as they arrive.

    It holds back unfinished characters, trailing white space, and whatever could become one of the `marks`: stop
    strings, which are not part of the reply, and the mark of a tool call, which is shown as a whole at the end. After a
    mark nothing more is shown. The mark of a call in a thought is text.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, marks: Sequence[str], calls: Sequence[str] = (), *, in_thought: bool = False
    ) -> None:
        """`calls` are the marks of calls, and `marks` others. `in_thought` says that the prompt opened a thought."""
        self._tokenizer = tokenizer
        self._marks = tuple(marks)
        self._calls = tuple(calls)
        self._in_thought = in_thought
        self._ids: list[int] = []
        self._text = ""
        self._decoded = 0
        self.shown = ""

    def push(self, token: int) -> str:
        """Add a token and return the text that can now be shown, which is often empty."""
        if token in self._tokenizer.stop_ids:
            return ""
        self._ids.append(token)
        # A token's text depends on its neighbours (spaces, characters of several bytes), hence the overlap of one
        # token.
        start = max(0, self._decoded - 1)
        earlier = self._tokenizer.decode(self._ids[start : self._decoded])
        grown = self._tokenizer.decode(self._ids[start:])
        if not grown.endswith("\ufffd"):
            self._text += grown[len(earlier) :]
            self._decoded = len(self._ids)
        safe = self._text[: self._safe_length()]
        new = safe[len(self.shown) :]
        self.shown += new
        return new

    def rest(self, content: str) -> str:
        """Return the part of the whole reply's content that has not been shown."""
        prefix = self.shown if content.startswith(self.shown) else self.shown.lstrip()
        return content[len(prefix) :] if content.startswith(prefix) else ""

    def _safe_length(self) -> int:
        text = self._text
        length = len(text)
        thought = thoughts(text, opened=self._in_thought) if self._calls else []
        for mark in (*self._marks, *self._calls):
            position = text.find(mark)
            while mark in self._calls and (end := next((end for start, end in thought if start <= position < end), 0)):
                position = text.find(mark, end)
            if position >= 0:
                length = min(length, position)
                continue
            for size in range(min(len(mark) - 1, len(text)), 0, -1):
                if text.endswith(mark[:size]):
                    length = min(length, len(text) - size)
                    break
        return len(text[:length].rstrip())
