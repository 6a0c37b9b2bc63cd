"""Keys for agent sessions. An agent gets one in place of an API key, and it identifies a single session."""

import re
import secrets
from typing import NamedTuple

from sqlalchemy import select

from learnloop_service.app.auth.caller import Caller, SessionKey
from learnloop_service.app.auth.key_cache import KeyCache
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, AgentSessionKey
from learnloop_service.app.errors import Unauthorized

_FORM = re.compile(r"las_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32
_MOST_CACHED = 10_000


def new_session_key() -> str:
    """Return a new random key: `las_` and 32 random bytes in base64url."""
    return f"las_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def is_session_key(secret: str) -> bool:
    """Whether the secret has the form of a session key."""
    return _FORM.fullmatch(secret) is not None


class _Session(NamedTuple):
    """The agent of a session, and the hash of the API key that opened it; None if none was needed."""

    caller: Caller
    opener_sha256: str | None


class AgentSessionKeys:
    """Finds the session of a key. The session ends when the API key that opened it does.

    The session of a key and its API key never change, so both are read only once. The validity of the API key is
    checked as often as if it were used directly. Whether the session is open and the key is its newest is checked with
    each call.
    """

    def __init__(self, database: Database, keys: KeyCache) -> None:
        self._database = database
        self._keys = keys
        self._sessions: dict[str, _Session] = {}

    async def caller(self, key: str) -> Caller:
        """Return the agent with that key. Raises Unauthorized."""
        sha256 = hash_of(key)
        caller, opener_sha256 = self._sessions.get(sha256) or await self._find(sha256)
        if opener_sha256 is not None and not await self._keys.holds(opener_sha256):
            raise Unauthorized("The session has ended: the API key that opened it is revoked, expired or changed.")
        return caller

    async def _find(self, sha256: str) -> _Session:
        query = (
            select(AgentSession.id, AgentSession.project, AgentSession.opener_sha256)
            .join(AgentSessionKey, AgentSessionKey.session_id == AgentSession.id)
            .where(AgentSessionKey.sha256 == sha256)
        )
        async with self._database() as tx:
            row = (await tx.execute(query)).one_or_none()
        if row is None:
            raise Unauthorized("There is no session with this key.")
        if len(self._sessions) >= _MOST_CACHED:
            self._sessions.clear()
        both = frozenset({Scope.READ, Scope.WRITE})
        caller = Caller(f"session:{row.id}", row.project, both, SessionKey(row.id, sha256))
        session = self._sessions[sha256] = _Session(caller, row.opener_sha256)
        return session

    def has(self, key: str) -> bool:
        """Return whether the key was found before. Makes no query."""
        return hash_of(key) in self._sessions
