"""JSON as RFC 8259 has it. Python's own reader also takes NaN, infinite numbers and unpaired surrogates."""

import json
import math
from typing import Any

import orjson


def loads(raw: bytes) -> Any:
    """The value of a JSON text; a whole number of more than 64 bits is a float. Raises ValueError, also for what cannot
    be written as JSON in UTF-8 again."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:  # it reads UTF-8 only, and says less of what is wrong
        return _read(raw)


def _read(raw: bytes) -> Any:
    text = raw.decode(json.detect_encoding(raw))
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant)
        if "\\u" in text:  # only an escape can spell a surrogate without its other half
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
