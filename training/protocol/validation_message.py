"""Messages of pydantic's validation errors, without its prefix for our own checks and without names of our classes."""

from collections.abc import Mapping
from typing import Any

_PYDANTIC_PREFIX = "Value error, "
"""Prefix of the message if a validator raised a ValueError."""


def message_of(fault: Mapping[str, Any]) -> str:
    """Return the message of an entry of ValidationError's `errors()`."""
    if fault["type"] == "model_type":
        return "Input should be an object"
    return str(fault["msg"]).removeprefix(_PYDANTIC_PREFIX)
