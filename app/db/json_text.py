"""What a Postgres text or jsonb column can hold.

A model can sample any bytes and a tool call can contain any escape, but Postgres stores neither U+0000 nor lone
surrogates, and jsonb has no NaN. Such characters become U+FFFD and such numbers null, so that an odd sample never makes
a result unstorable.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import orjson
from sqlalchemy import Dialect, Text, TypeDecorator

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

MAX_NESTING = 64
"""Maximum nesting depth of JSON from clients: more than any request needs, less than Python's recursion limit."""
_TOO_DEEP = f"values may not be nested more than {MAX_NESTING} deep"
_NESTED = (dict, list)  # a tuple, because a union type would be built anew for every value


def storable_text(text: str) -> str:
    """Return the text with unstorable characters replaced."""
    return _UNSTORABLE.sub("\ufffd", text)


def flaw(value: Any) -> str | None:
    """Return why a client's JSON value is rejected, or None if all of it can be stored and processed."""
    for depth, level in enumerate(_levels(value)):
        if depth == MAX_NESTING:
            return _TOO_DEEP
        texts = "".join([item for item in level if isinstance(item, str)])
        if "\x00" in texts or _has_surrogates(texts):
            return "texts may not hold U+0000 or unpaired surrogates"
    return None


def nesting_flaw(value: Any) -> str | None:
    """Return why a client's JSON value is rejected as too deeply nested, or None if it is not."""
    return _TOO_DEEP if any(depth == MAX_NESTING for depth, _ in enumerate(_levels(value))) else None


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values of each level of nesting, from the outermost."""
    level = [value]
    while level:
        yield level
        level = [inner for item in level if isinstance(item, _NESTED) for inner in _inside(item)]


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else value


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def dumps(value: Any) -> str:
    """Return JSON text for a jsonb column."""
    with suppress(orjson.JSONEncodeError):  # unpaired surrogates, keys that are not strings, integers over 64 bits
        text = orjson.dumps(value).decode()  # NaN and infinity become null
        if "\\u0000" not in text:  # rare, and walking every value is slow
            return text
    return json.dumps(_storable(value), ensure_ascii=False, allow_nan=False)


canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode
"""Returns the JSON text that equal values have in common, for hashes. Raises ValueError for NaN."""


def loads(text: str | bytes) -> Any:
    """Parse the value of a jsonb column."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # a number that is too large for orjson
        return json.loads(text)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {storable_text(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value


class StorableText(TypeDecorator[str]):
    """A text column that replaces what Postgres cannot store."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable_text(value)
