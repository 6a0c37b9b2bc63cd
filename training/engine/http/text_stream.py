"""Text of a reply that is still being sampled: what of it can be shown already."""

from collections.abc import Sequence

from training.engine.tokens import ChatTokenizer


class TextStream:
    """Turns token ids into text as they come.

    Held back are unfinished characters, trailing white space, and whatever may become one of `marks`: stop strings,
    which are not part of the reply, and the mark of a tool call, which is shown whole at the end. Once a mark stands
    in the text nothing more is shown.
    """

    def __init__(self, tokenizer: ChatTokenizer, marks: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._marks = tuple(marks)
        self._ids: list[int] = []
        self._text = ""
        self._decoded = 0
        self.shown = ""

    def push(self, token: int) -> str:
        """The text that the token makes showable; often empty."""
        if token in self._tokenizer.stop_ids:
            return ""
        self._ids.append(token)
        # A token's text depends on its neighbours (spaces, characters of several bytes), hence the overlap of one.
        start = max(0, self._decoded - 1)
        known = self._tokenizer.decode(self._ids[start : self._decoded])
        grown = self._tokenizer.decode(self._ids[start:])
        if not grown.endswith("\ufffd"):
            self._text += grown[len(known) :]
            self._decoded = len(self._ids)
        safe = self._text[: self._safe_length()]
        new = safe[len(self.shown) :]
        self.shown += new
        return new

    def rest(self, content: str) -> str:
        """What is missing of the whole reply's content."""
        return content[len(self.shown) :] if content.startswith(self.shown) else ""

    def _safe_length(self) -> int:
        text = self._text
        length = len(text)
        for mark in self._marks:
            if (found := text.find(mark)) >= 0:
                length = min(length, found)
                continue
            for size in range(min(len(mark) - 1, len(text)), 0, -1):
                if text.endswith(mark[:size]):
                    length = min(length, len(text) - size)
                    break
        return len(text[:length].rstrip())
