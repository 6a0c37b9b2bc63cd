"""Backends by name."""

from training.backends import embedded
from training.backends.base import Backend


class UnknownBackend(Exception):
    """No backend of that name."""


def names() -> list[str]:
    """The backends there are."""
    return [embedded.NAME]


async def connect(name: str, *, engine_url: str, engine_key: str) -> Backend:
    """The backend of that name; `engine_url` is our engine's root. Raises UnknownBackend."""
    if name == embedded.NAME:
        return await embedded.connect(f"{engine_url}/v1", engine_key)
    raise UnknownBackend(f"no backend named {name!r}; there are: {', '.join(names())}")
