"""Sessions of browsers: all SQL about them. A session stands for the API key that opened it, and ends with it.

A page must not keep a key where scripts can read it. It exchanges the key for a random token, which the browser keeps
in a cookie; the database holds its hash. The key from the settings has no row: the hash of its sessions covers that
key, so they end when it is changed.
"""

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from ulid import ULID

from app.auth.keys import hash_of, holds
from app.db.session import Sessions
from app.db.tables import ApiKey, BrowserSession

_FORM = re.compile(r"ls_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32
MOST_OF_A_KEY = 100
"""The newest sessions of a key; older ones end."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """A new session, the only time that its token can be read."""

    token: str = field(repr=False)
    expires_at: datetime
    seconds: int
    """Until then."""


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session that has not ended."""

    key: ApiKey | None
    """None: the key from the settings."""
    expires_at: datetime


class BrowserSessions:
    """The sessions in the database. `operator_hash` is of the key from the settings."""

    def __init__(self, sessions: Sessions, operator_hash: str | None, lifetime: timedelta) -> None:
        self._sessions = sessions
        self._operator_hash = operator_hash
        self._lifetime = lifetime

    async def open(self, key: ApiKey | None) -> NewSession:
        """Open a session of that key, or of the key from the settings. It does not outlive the key."""
        token = f"ls_{secrets.token_urlsafe(_RANDOM_BYTES)}"
        key_id = None if key is None else key.id
        end = select(ApiKey.expires_at).where(ApiKey.id == key_id).scalar_subquery()
        row = BrowserSession(
            id=str(ULID()),
            sha256=hash_of(token) if key is not None else self._operators(token),
            key_id=key_id,
            expires_at=func.least(func.now() + self._lifetime, end),
        )
        async with self._sessions.begin() as session:
            session.add(row)
            await session.flush()
            await session.refresh(row)
            await session.execute(delete(BrowserSession).where(self._superfluous(key_id)))
        lifetime = row.expires_at - row.created_at
        return NewSession(token, row.expires_at, int(lifetime.total_seconds()))

    async def find(self, token: str) -> FoundSession | None:
        """The session with that token, unless it, or its key, is expired or revoked."""
        if not _FORM.fullmatch(token):
            return None
        query = (
            select(ApiKey, BrowserSession.expires_at)
            .select_from(BrowserSession)
            .outerjoin(ApiKey, ApiKey.id == BrowserSession.key_id)
            .where(
                BrowserSession.sha256.in_(self._hashes(token)),
                BrowserSession.expires_at > func.now(),
                or_(BrowserSession.key_id.is_(None), holds()),
            )
        )
        async with self._sessions() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else FoundSession(*row)

    async def end(self, token: str) -> None:
        """End the session with that token, if there is one."""
        async with self._sessions.begin() as session:
            await session.execute(delete(BrowserSession).where(BrowserSession.sha256.in_(self._hashes(token))))

    def _hashes(self, token: str) -> list[str]:
        return [hash_of(token), *([] if self._operator_hash is None else [self._operators(token)])]

    def _operators(self, token: str) -> str:
        return hash_of(f"{token} {self._operator_hash}")

    def _superfluous(self, key_id: str | None) -> ColumnElement[bool]:
        of_key = BrowserSession.key_id.is_not_distinct_from(key_id)
        older = select(BrowserSession.id).where(of_key).order_by(BrowserSession.id.desc()).offset(MOST_OF_A_KEY)
        return or_(BrowserSession.expires_at <= func.now(), BrowserSession.id.in_(older))
