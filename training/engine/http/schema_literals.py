"""The literals of a JSON schema: its texts that replies contain or are matched against."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json

MAX_LITERAL_BYTES = 120_000
"""Maximum total size of all literals of a request's schemas, in bytes. OpenAI allows as many characters."""
_MAX_LOCATION = 120


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, a value of an enumeration, a pattern or the name of a property."""

    location: str
    """Location in the schema, such as `properties.name.pattern`."""
    size: int
    """Size in bytes of UTF-8. Values other than strings are measured as JSON."""


def literals(schema: Json) -> Iterator[Literal]:
    """Yield all literals of a schema. A name counts where it is declared and again where it is required."""
    unvisited: list[tuple[str, Json]] = [("", schema)]
    while unvisited:
        location, value = unvisited.pop()
        if isinstance(value, list):
            unvisited += [(_joined(location, f"[{index}]"), element) for index, element in enumerate(value)]
        elif isinstance(value, dict):
            for key, child in value.items():
                inside = _joined(location, f".{key}" if location else key)
                yield from (Literal(inside, _size(text)) for text in _texts(key, child))
                unvisited.append((inside, child))


def _texts(keyword: str, value: Json) -> list[Json]:
    """Return the literals in a keyword's value. If a property has the name of a keyword, `value` is a schema and there
    are none."""
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


def _joined(location: str, part: str) -> str:
    """Join two parts of a location, limited in length because names can be long and schemas deep."""
    joined = location + part[:_MAX_LOCATION]
    return joined if len(joined) <= _MAX_LOCATION else f"{joined[:_MAX_LOCATION].rstrip('.')}..."
