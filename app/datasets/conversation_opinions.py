"""What people thought of a conversation: thumbs, reactions and numbers, wherever exports write them."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json

_UP = "👍 ❤ 💯 🎉 up thumbs_up thumbsup like liked positive good yes true upvote helpful"
_DOWN = "👎 💔 down thumbs_down thumbsdown dislike disliked negative bad no false downvote unhelpful"
_WORDS = dict.fromkeys(_UP.split(), True) | dict.fromkeys(_DOWN.split(), False)
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}(\.[0-9]{1,9})?")
_MODIFIERS = dict.fromkeys([*range(0x1F3FB, 0x1F400), 0xFE0F])
"""Skin tones and the mark that asks for a picture. They do not change what a reaction means."""
_FIELDS = (
    "feedback", "thumbs", "thumb", "rating", "vote", "reaction", "liked", "label", "opinion", "user_feedback",
    "annotation", "reward", "score", "scores",
)  # fmt: skip
_VALUES = (*_FIELDS, "payload", "emoji", "value", "stringValue", "type", "data")
_NAMES = ("name", "feedback_type")
_PLACES = ("metadata", "attributes", "summary", "weave")
_THUMBS = frozenset((-1.0, 0.0, 1.0))
_DEEPEST = 8

Opinion = bool | float
"""A thumb, or a number that only a threshold makes one."""


class NoThreshold(ValueError):
    """The opinions are numbers, and no threshold says from which number on a conversation was liked."""


def opinions(line: Json, field: str | None = None) -> list[Opinion]:
    """Return all opinions in a line, or only those that have the name `field`."""
    if not isinstance(line, dict):
        return []
    opinions_of_line = [
        opinion for holder in _places(line) for key in _FIELDS for opinion in _read(holder.get(key), field, key)
    ]
    if field is not None and field not in _FIELDS:
        opinions_of_line += [opinion for holder in _places(line) for opinion in _read(holder.get(field), None, field)]
    return opinions_of_line


def _places(line: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    yield line
    for key in _PLACES:
        if isinstance(inner := line.get(key), dict):
            yield from _places(inner)
    talk = line.get("messages") or line.get("conversations")
    if isinstance(talk, list):
        yield from (message for message in talk if isinstance(message, dict))


def _read(value: Json, field: str | None, name: str, depth: int = 0) -> Iterator[Opinion]:
    """Yield the opinions in a value that is called `name`."""
    inner_field = None if field == name else field
    if isinstance(value, list) and depth < _DEEPEST:
        for inner in value:
            yield from _read(inner, inner_field, name, depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        yield from _read_object(value, inner_field, depth)
    elif inner_field is None:
        yield from _read_one(value)


def _read_object(value: Mapping[str, Json], field: str | None, depth: int) -> Iterator[Opinion]:
    called = next((called for key in _NAMES if isinstance(called := value.get(key), str)), None)
    if field is not None and called is not None:
        if called != field:
            return
        field = None
    if value.get("dataType") == "BOOLEAN" and value.get("value") in (0, 1):
        if field is None:
            yield bool(value["value"])
        return
    keys = [key for key in _VALUES if key in value]
    # An object without any known key has the opinions by their names, such as {"user-feedback": 1}.
    for key in keys if called is not None or keys else value:
        inner_opinions = list(_read(value[key], field, key, depth + 1))
        yield from inner_opinions
        if inner_opinions and keys:
            return


def _read_one(value: Json) -> Iterator[Opinion]:
    if isinstance(value, bool):
        yield value
    elif isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        word = value.strip().strip(":").lower().translate(_MODIFIERS)
        if _NUMBER.fullmatch(word):
            yield float(word)
        elif (word := re.sub(r"[\s_-]+", "_", word)) in _WORDS:
            yield _WORDS[word]


@dataclass(frozen=True, slots=True)
class Scale:
    """Which opinions are favorable."""

    threshold: float | None = None
    """Lowest number of a conversation that was liked; None if numbers are thumbs, 1 and 0 or 1 and -1."""
    zero_is_down: bool = True

    @classmethod
    def of(cls, opinions: Collection[Opinion], threshold: float | None) -> "Scale":
        """Return the scale of all opinions in a file. Raises NoThreshold."""
        numbers = {opinion for opinion in opinions if not isinstance(opinion, bool)}
        if threshold is None and numbers - _THUMBS:
            raise NoThreshold(
                f"the opinions are numbers from {min(numbers):g} to {max(numbers):g}: give `threshold`, the least "
                "number of a conversation that was liked, or in `opinion` the name of the field or score that counts"
            )
        return cls(threshold, -1.0 not in numbers)

    def liked(self, opinions: Collection[Opinion]) -> bool | None:
        """Return whether the conversation was liked; None if it says nothing, or contradicts itself."""
        verdicts = {verdict for opinion in opinions if (verdict := self._liked_one(opinion)) is not None}
        return verdicts.pop() if len(verdicts) == 1 else None

    def disagrees(self, opinions: Collection[Opinion]) -> bool:
        """Return whether there are opinions for and against the conversation."""
        return {self._liked_one(opinion) for opinion in opinions} >= {True, False}

    def _liked_one(self, opinion: Opinion) -> bool | None:
        if isinstance(opinion, bool):
            return opinion
        if self.threshold is not None:
            return opinion >= self.threshold
        return None if opinion == 0 and not self.zero_is_down else opinion > 0
