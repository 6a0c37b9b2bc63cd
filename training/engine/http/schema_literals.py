"""The literals of a JSON schema: the texts in it that replies contain or are matched with."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from environment.json_type import Json

MAX_LITERAL_BYTES = 120_000
"""In all schemas of a request together. OpenAI allows as many characters."""
_MAX_PLACE = 120


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, a value of an enumeration, a pattern or the name of a property."""

    place: str
    """Where in the schema it stands, as in `properties.name.pattern`."""
    size: int
    """In bytes of UTF-8; of values that are not texts as JSON."""


def literals(schema: Json) -> Iterator[Literal]:
    """All literals of a schema. A name counts where it is declared and again where it is required."""
    left: list[tuple[str, Json]] = [("", schema)]
    while left:
        place, value = left.pop()
        if isinstance(value, list):
            left += [(_joined(place, f"[{index}]"), each) for index, each in enumerate(value)]
        elif isinstance(value, dict):
            for key, child in value.items():
                inside = _joined(place, f".{key}" if place else key)
                yield from (Literal(inside, _size(each)) for each in _texts(key, child))
                left.append((inside, child))


def _texts(keyword: str, value: Json) -> list[Json]:
    """The literals that a keyword stands for. A property can have the name of a keyword; then `value` is a schema."""
    if keyword == "const" or (keyword == "pattern" and isinstance(value, str)):
        return [value]
    if keyword in ("enum", "required") and isinstance(value, list):
        return value
    if keyword in ("properties", "patternProperties") and isinstance(value, dict):
        return list(value)
    return []


def _size(value: Json) -> int:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


def _joined(place: str, part: str) -> str:
    """Bounded, because names can be long and schemas deep."""
    joined = place + part[:_MAX_PLACE]
    return joined if len(joined) <= _MAX_PLACE else f"{joined[:_MAX_PLACE].rstrip('.')}..."
