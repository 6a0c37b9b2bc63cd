"""API keys: their format, and all SQL about them. The database only holds their hashes."""

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Update, and_, func, or_, select, update
from ulid import ULID

from learnloop_service.app.auth.caller import ANY_PROJECT, Caller
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import AgentSession, ApiKey
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.errors import existing

_FORM = re.compile(r"ll_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32
_PREFIX_LENGTH = 11
"""Number of characters of a key that are stored to recognize it: 48 of its 256 random bits."""
_USED_EVERY = timedelta(minutes=1)


def new_key() -> str:
    """Return a new random key: `ll_` and 32 random bytes in base64url."""
    return f"ll_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def well_formed(key: str) -> bool:
    """Whether the key has the right format."""
    return _FORM.fullmatch(key) is not None


def hash_of(key: str) -> str:
    """Return the hash that is stored for a key: SHA-256 in hex. Random keys need no slow hash."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key, which cannot be read again later."""

    row: ApiKey
    key: str


class Keys:
    """The keys in the database. `of` is the caller that manages keys: those of its project, or all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        *,
        project: str,
        name: str,
        scopes: Iterable[Scope],
        expires_days: int | None = None,
        improvement_id: str | None = None,
    ) -> NewKey:
        """Create a key for a project, or for all projects if it is `*`. One that proposes prompts is for one
        improvement."""
        key = new_key()
        row = ApiKey(
            id=str(ULID()),
            project=project,
            name=name,
            prefix=key[:_PREFIX_LENGTH],
            sha256=hash_of(key),
            scopes=sorted(set(scopes)),
            improvement_id=improvement_id,
            expires_at=None if expires_days is None else func.now() + timedelta(days=expires_days),
        )
        async with self._database.begin() as tx:
            tx.add(row)
            await tx.flush()
            await tx.refresh(row)
        return NewKey(row, key)

    async def list(self, of: Caller, *, before: str | None, limit: int) -> Sequence[ApiKey]:
        """List keys, newest first, including revoked and expired ones; `before` is the id of a key."""
        query = newest_first(select(ApiKey), ApiKey.id, before, limit, (ApiKey.project, of.project))
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def revoke(self, of: Caller, key_id: str) -> ApiKey:
        """Revoke a key, and end the agent sessions that it opened. Revoking it again keeps the first time. Raises
        NotFound."""
        end = update(ApiKey).where(ApiKey.id == key_id)
        if of.project is not None:
            end = end.where(ApiKey.project == of.project)
        ended = end.values(revoked_at=func.coalesce(ApiKey.revoked_at, func.now())).returning(ApiKey)
        async with self._database.begin() as tx:
            row = existing((await tx.execute(ended)).scalar_one_or_none(), "key", key_id)
            await tx.execute(_end_sessions(row.sha256))
        return row

    async def by_hash(self, sha256: str) -> ApiKey | None:
        """Return the key with that hash, unless it is revoked or, by the database's clock, expired."""
        query = select(ApiKey).where(ApiKey.sha256 == sha256, holds())
        async with self._database() as tx:
            return (await tx.execute(query)).scalar_one_or_none()

    async def any_exist(self) -> bool:
        """Whether a key was ever created. Revoked and expired ones count: the end of the last key must not open a
        service to everyone."""
        async with self._database() as tx:
            return bool((await tx.execute(select(select(ApiKey.id).exists()))).scalar_one())

    async def note_use(self, key_ids: Iterable[str]) -> None:
        """Record that these keys are in use, at most once a minute for each key across all processes."""
        due = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - _USED_EVERY)
        note = update(ApiKey).where(ApiKey.id.in_(sorted(key_ids)), due).values(last_used_at=func.now())
        async with self._database.begin() as tx:
            await tx.execute(note)


def _end_sessions(opener_sha256: str) -> Update:
    """Return the statement that ends the agent sessions opened with that key."""
    opened = (AgentSession.opener_sha256 == opener_sha256, AgentSession.state == AgentSessionState.OPEN)
    now = func.clock_timestamp()
    return update(AgentSession).where(*opened).values(state=AgentSessionState.EXPIRED, expires_at=now, ended_at=now)


def holds() -> ColumnElement[bool]:
    """SQL condition: the key is not revoked and, by the database's clock, not expired."""
    return and_(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()))


def caller_with(row: ApiKey) -> Caller:
    """Return the caller with that key."""
    project = None if row.project == ANY_PROJECT else row.project
    scopes = frozenset(Scope(scope) for scope in row.scopes)
    key = {"id": row.id, "name": row.name}
    return Caller(f"key:{row.prefix}", project, scopes, None, row.improvement_id, row.sha256, key)
