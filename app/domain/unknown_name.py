"""Messages about an unknown name: of a field, a query parameter, a setting."""

from collections.abc import Collection
from difflib import get_close_matches

_LONGEST = 64
"""Longest name to compare, in characters. Comparing takes time, and a longer name is not a misspelling of ours."""


def similar(name: str, names: Collection[str], likeness: float = 0.6) -> str | None:
    """Return the known name that was probably meant, or None. A `likeness` of 1 accepts only the same name."""
    return next(iter(get_close_matches(name, names, 1, likeness)), None) if len(name) <= _LONGEST else None


def unknown(kind: str, name: str, names: Collection[str]) -> str:
    """Return a message such as `Unknown field. Did you mean iterations?`, with all known names if none is similar."""
    if (closest := similar(name, names)) is not None:
        return f"Unknown {kind}. Did you mean {closest}?"
    return f"Unknown {kind}. Known: {', '.join(names)}." if names else f"Unknown {kind}. There are none here."
