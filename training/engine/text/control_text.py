"""Text of a conversation that spells control tokens, such as an email that writes the mark of a turn.

A chat template renders one text, in which its own marks and those in the content look alike. The latter are therefore
split by a pair of characters that no text has, which goes through the template and is removed when the text is
tokenized in pieces.
"""

import re
from collections.abc import Collection

from learnloop_service.environment.json_type import Json

SPLIT = "\ufdd0\ufdd1"
"""Stands inside every control token that content spells."""
_ESCAPED = "\\ufdd0\\ufdd1"
_STRUCTURE = ("role", "type")
"""Fields of messages and tools whose names are not content."""


class ControlText:
    """Splits the control tokens that content spells."""

    def __init__(self, tokens: Collection[str], kept: Collection[str]) -> None:
        """`kept` are those that a reply may contain, such as marks of thoughts and of calls."""
        self._content = _pattern(tokens)
        self._reply = _pattern(set(tokens) - set(kept))

    def split(self, value: Json, *, reply: bool = False) -> Json:
        """Return a message, a tool or a part of one with every control token split; those that may be in a reply are
        left whole in a `reply`."""
        if isinstance(value, str):
            return (self._reply if reply else self._content).sub(lambda found: found[0] + SPLIT, value)
        if isinstance(value, list):
            return [self.split(each, reply=reply) for each in value]
        if isinstance(value, dict):
            return {
                self.split(key, reply=reply): each if _is_structure(key, each) else self.split(each, reply=reply)
                for key, each in value.items()
            }
        return value


def _is_structure(key: str, value: Json) -> bool:
    """Whether this is the name of a role or type. Arguments of calls can have the same keys and any text."""
    return key in _STRUCTURE and isinstance(value, str) and value.isidentifier()


def _pattern(tokens: Collection[str]) -> "re.Pattern[str]":
    """Match the first character of each token, so that tokens that overlap are all split."""
    whole = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(f"{re.escape(each[0])}(?={re.escape(each[1:])})" for each in whole) or r"(?!)")


def with_splits(rendered: str) -> str:
    """Return a rendered text in which the template has not escaped the characters that split tokens."""
    return rendered.replace(_ESCAPED, SPLIT)
