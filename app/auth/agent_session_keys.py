"""Keys that name one agent session: what an agent is given in place of an API key."""

import re
import secrets

_FORM = re.compile(r"las_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32


def new_session_key() -> str:
    """A new random key: `las_` and 32 random bytes in base64url."""
    return f"las_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def is_session_key(secret: str) -> bool:
    """Whether it has the form of such a key."""
    return _FORM.fullmatch(secret) is not None
