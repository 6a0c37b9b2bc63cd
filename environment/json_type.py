"""The type of a value that JSON can express. Everything but the Python client imports it from here."""

from typing import Any

Json = Any
"""A value that `json.dumps` accepts: None, bool, int, float, str, or lists and string-keyed dicts of these."""
