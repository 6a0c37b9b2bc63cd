"""What pydantic says about a value, in our own words where a check is ours."""

from collections.abc import Mapping
from typing import Any

_OF_THE_LIBRARY = "Value error, "
"""Before the message of a ValueError that a validator raised."""


def message_of(fault: Mapping[str, Any]) -> str:
    """The message of one of a ValidationError's `errors()`."""
    return str(fault["msg"]).removeprefix(_OF_THE_LIBRARY)
