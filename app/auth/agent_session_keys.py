"""Keys that name one agent session: what an agent is given in place of an API key."""

import re
import secrets

from sqlalchemy import select

from app.auth.caller import Caller, SessionKey
from app.auth.keys import hash_of
from app.auth.scopes import Scope
from app.db.session import Sessions
from app.db.tables import AgentSession, AgentSessionKey
from app.errors import Unauthorized

_FORM = re.compile(r"las_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32
_MOST_CACHED = 10_000


def new_session_key() -> str:
    """A new random key: `las_` and 32 random bytes in base64url."""
    return f"las_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def is_session_key(secret: str) -> bool:
    """Whether it has the form of such a key."""
    return _FORM.fullmatch(secret) is not None


class AgentSessionKeys:
    """Finds the session of a key. What a key names never changes, so it is asked for once; whether the session is open,
    and the key its newest one, is looked at with each call."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._found: dict[str, Caller] = {}

    async def caller(self, key: str) -> Caller:
        """The agent with that key. Raises Unauthorized."""
        sha256 = hash_of(key)
        if (kept := self._found.get(sha256)) is not None:
            return kept
        query = (
            select(AgentSession.id, AgentSession.project)
            .join(AgentSessionKey, AgentSessionKey.session_id == AgentSession.id)
            .where(AgentSessionKey.sha256 == sha256)
        )
        async with self._sessions() as session:
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise Unauthorized("There is no session with this key.")
        if len(self._found) >= _MOST_CACHED:
            self._found.clear()
        both = frozenset({Scope.READ, Scope.WRITE})
        caller = self._found[sha256] = Caller(f"session:{row.id}", row.project, both, SessionKey(row.id, sha256))
        return caller

    def has(self, key: str) -> bool:
        """Whether it was found before. No query."""
        return hash_of(key) in self._found
