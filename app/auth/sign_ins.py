"""All SQL about sign-ins of browsers. A sign-in stands for the API key that it was made with, and ends with it.

A page must not keep a key where scripts can read it. It exchanges the key for a random token, which the browser keeps
in a cookie; the database holds the token's hash. The operator's key from the settings has no row: it is part of the
hash of its sign-ins, so that they end when it is changed.
"""

import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from ulid import ULID

from learnloop_service.app.auth.keys import hash_of, holds
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import ApiKey, SignIn

_FORM = re.compile(r"ls_[A-Za-z0-9_-]{43}")
_RANDOM_BYTES = 32
MOST_OF_A_KEY = 100
"""How many sign-ins of one key are kept: the newest ones. Older ones end."""


@dataclass(frozen=True, slots=True)
class NewSignIn:
    """A new sign-in. Its token can be read here and never again."""

    token: str = field(repr=False)
    expires_at: datetime
    seconds: int
    """Time until it ends."""


@dataclass(frozen=True, slots=True)
class FoundSignIn:
    """A sign-in that has not ended."""

    key: ApiKey | None
    """The key that it stands for; None for the operator's key from the settings."""
    expires_at: datetime


class SignIns:
    """The sign-ins in the database. `operator_hash` is the hash of the operator's key from the settings."""

    def __init__(self, database: Database, operator_hash: str | None, lifetime: timedelta) -> None:
        self._database = database
        self._operator_hash = operator_hash
        self._lifetime = lifetime

    async def open(self, key: ApiKey | None) -> NewSignIn:
        """Add a sign-in with that key, or with the operator's key if None. It does not outlive the key."""
        token = f"ls_{secrets.token_urlsafe(_RANDOM_BYTES)}"
        key_id = None if key is None else key.id
        end = select(ApiKey.expires_at).where(ApiKey.id == key_id).scalar_subquery()
        row = SignIn(
            id=str(ULID()),
            sha256=hash_of(token) if key is not None else self._operators(token),
            key_id=key_id,
            expires_at=func.least(func.now() + self._lifetime, end),
        )
        async with self._database.begin() as tx:
            tx.add(row)
            await tx.flush()
            await tx.refresh(row)
            await tx.execute(delete(SignIn).where(self._superfluous(key_id)))
        lifetime = row.expires_at - row.created_at
        return NewSignIn(token, row.expires_at, int(lifetime.total_seconds()))

    async def find(self, token: str) -> FoundSignIn | None:
        """Find the sign-in with that token. None if there is none, or if it or its key has expired or was revoked."""
        if not _FORM.fullmatch(token):
            return None
        query = (
            select(ApiKey, SignIn.expires_at)
            .select_from(SignIn)
            .outerjoin(ApiKey, ApiKey.id == SignIn.key_id)
            .where(
                SignIn.sha256.in_(self._hashes(token)),
                SignIn.expires_at > func.now(),
                or_(SignIn.key_id.is_(None), holds()),
            )
        )
        async with self._database() as tx:
            row = (await tx.execute(query)).one_or_none()
        return None if row is None else FoundSignIn(*row)

    async def end(self, token: str) -> None:
        """End the sign-in with that token, if there is one."""
        async with self._database.begin() as tx:
            await tx.execute(delete(SignIn).where(SignIn.sha256.in_(self._hashes(token))))

    def _hashes(self, token: str) -> list[str]:
        return [hash_of(token), *([] if self._operator_hash is None else [self._operators(token)])]

    def _operators(self, token: str) -> str:
        return hash_of(f"{token} {self._operator_hash}")

    def _superfluous(self, key_id: str | None) -> ColumnElement[bool]:
        of_key = SignIn.key_id.is_not_distinct_from(key_id)
        older = select(SignIn.id).where(of_key).order_by(SignIn.id.desc()).offset(MOST_OF_A_KEY)
        return or_(SignIn.expires_at <= func.now(), SignIn.id.in_(older))
