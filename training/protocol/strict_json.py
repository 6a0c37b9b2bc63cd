"""Strict JSON as in RFC 8259. Python's own parser also accepts NaN, infinite numbers and unpaired surrogates."""

import json
import math
from typing import Any

import orjson


def loads(raw: bytes) -> Any:
    """Return the value of a JSON text; an integer of more than 64 bits becomes a float. Raises ValueError, also for
    values that cannot be written as JSON in UTF-8."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:  # orjson reads only UTF-8, and its error messages are less specific
        return _read(raw)


def _read(raw: bytes) -> Any:
    text = raw.decode(json.detect_encoding(raw))
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant)
        if "\\u" in text:  # only an escape can produce an unpaired surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a string holds an unpaired surrogate") from None
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large for a number")
    return number


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
