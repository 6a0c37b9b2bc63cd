"""What may lie in a Postgres text or jsonb column.

A model samples any bytes and a tool call may spell any escape, but Postgres stores neither U+0000 nor lone
surrogates, and jsonb knows no NaN. Such characters become U+FFFD and such numbers null, so that no odd sample can
make a result unstorable.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Dialect, Text, TypeDecorator

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable_text(text: str) -> str:
    """The text with unstorable characters replaced."""
    return _UNSTORABLE.sub("\ufffd", text)


def has_unstorable(value: Any) -> bool:
    """Whether a JSON value holds a character that would be replaced."""
    if isinstance(value, str):
        return _UNSTORABLE.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_unstorable(key) or has_unstorable(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(has_unstorable, value))


def dumps(value: Any) -> str:
    """JSON text for a jsonb column."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or infinity
        return json.dumps(_storable(value), ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text or _UNSTORABLE.search(text):  # rare, and walking through every value is slow
        return json.dumps(_storable(value), ensure_ascii=False, allow_nan=False)
    return text


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
