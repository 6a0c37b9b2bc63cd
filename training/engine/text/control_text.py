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

    def __init__(self, tokens: Collection[str], in_replies: Collection[str]) -> None:
        """`in_replies` are the tokens that a reply can contain, such as marks of thoughts and of calls."""
        self._content = _pattern(tokens)
        self._reply = _pattern(set(tokens) - set(in_replies))

    def split(self, value: Json, *, reply: bool = False) -> Json:
        """Return a message, a tool or a part of one with every control token split, except those that a reply can
        contain if it is a `reply`."""
        if isinstance(value, str):
            return (self._reply if reply else self._content).sub(lambda match: match[0] + SPLIT, value)
        if isinstance(value, list):
            return [self.split(element, reply=reply) for element in value]
        if isinstance(value, dict):
            return {
                self.split(key, reply=reply): member if _is_structure(key, member) else self.split(member, reply=reply)
                for key, member in value.items()
            }
        return value


def _is_structure(key: str, value: Json) -> bool:
    """Whether this is the name of a role or type. Arguments of calls can have the same keys and any text."""
    return key in _STRUCTURE and isinstance(value, str) and value.isidentifier()


def _pattern(tokens: Collection[str]) -> "re.Pattern[str]":
    """Match the first character of each token, so that tokens that overlap are all split."""
    whole = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in whole) or r"(?!)")


def with_splits(rendered: str) -> str:
    """Return a rendered text in which the template has not escaped the characters that split tokens."""
    return rendered.replace(_ESCAPED, SPLIT)
