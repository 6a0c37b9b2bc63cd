"""What to say about a name that nobody knows: a field, a query parameter, a setting."""

from collections.abc import Collection
from difflib import get_close_matches

_LONGEST = 64
"""Characters of a name that is compared: comparing takes time, and nobody means a name of ours by a longer one."""


def similar(name: str, known: Collection[str], likeness: float = 0.6) -> str | None:
    """The known name that was probably meant; None if none is similar. At a `likeness` of 1 only the same name is."""
    return next(iter(get_close_matches(name, known, 1, likeness)), None) if len(name) <= _LONGEST else None


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """`Unknown field. Did you mean iterations?`, or all known names if none is similar."""
    if (meant := similar(name, known)) is not None:
        return f"Unknown {kind}. Did you mean {meant}?"
    return f"Unknown {kind}. Known: {', '.join(known)}." if known else f"Unknown {kind}. There are none here."
