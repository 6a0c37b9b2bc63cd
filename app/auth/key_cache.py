"""Finds the caller of a key. Keys are looked up by their hash and cached for a few seconds, which saves most queries.

The cache time is also how long a replica can still accept a revoked or expired key.
"""

import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from pydantic import SecretStr

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.keys import Keys, caller_with, hash_of, well_formed
from learnloop_service.app.auth.scopes import UNBOUND
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import ApiKey
from learnloop_service.app.errors import DATABASE_DOWN, Unauthorized

KEPT_S = 4.0
"""How long a key is cached; revocation is guaranteed within 5 s."""
_SAVE_USE_INTERVAL_S = 60.0
_OPERATOR = Caller("key:operator", None, UNBOUND)
"""The caller that uses the key from the settings."""


@dataclass
class KeyCache:
    """The keys that this process accepts."""

    keys: Keys
    operator_hash: str | None = None
    """Hash of the operator's key from the settings."""
    clock: Callable[[], float] = time.monotonic
    _cached: dict[str, tuple[ApiKey, float]] = field(default_factory=dict)
    """Keys by their hash, each with the time of the look-up."""
    _exist: bool = False
    """Whether a key was ever created, as of `_asked_at`."""
    _asked_at: float | None = None
    _used: set[str] = field(default_factory=set)

    async def caller(self, key: str) -> Caller:
        """Return the caller with that key. Raises Unauthorized, which does not reveal whether the key ever existed."""
        return self.caller_of(await self.find(key))

    async def find(self, key: str) -> ApiKey | None:
        """Return the row of that key; None for the key from the settings. Raises Unauthorized."""
        sha256 = hash_of(key)
        if self._is_operators(sha256):
            return None
        row = await self._row(sha256) if well_formed(key) else None
        if row is None or not hmac.compare_digest(row.sha256, sha256):
            raise Unauthorized("The API key is invalid, revoked or expired.")
        return row

    def caller_of(self, row: ApiKey | None) -> Caller:
        """Return the caller with a key that `find` returned, and record that the key was used."""
        if row is None:
            return replace(_OPERATOR, key_sha256=self.operator_hash)
        self._used.add(row.id)
        return caller_with(row)

    async def holds(self, sha256: str) -> bool:
        """Whether a key with that hash exists and is neither revoked nor expired."""
        return self._is_operators(sha256) or await self._row(sha256) is not None

    async def any_exist(self) -> bool:
        """Whether a key was ever created. While the database is down, the last answer holds, if there was one."""
        now = self.clock()
        if self._exist or (self._asked_at is not None and now - self._asked_at < KEPT_S):
            return self._exist
        try:
            self._exist = self.operator_hash is not None or await self.keys.any_exist()
        except DATABASE_DOWN:
            if self._asked_at is None:
                raise
        self._asked_at = now
        return self._exist

    def note_created(self) -> None:
        """Record that this process created a key, so that `any_exist` knows it immediately."""
        self._exist = True

    def has(self, key: str) -> bool:
        """Whether the key was valid when it was last looked up. Makes no query."""
        sha256 = hash_of(key)
        return sha256 in self._cached or sha256 == self.operator_hash

    def _is_operators(self, sha256: str) -> bool:
        return self.operator_hash is not None and hmac.compare_digest(sha256, self.operator_hash)

    async def _row(self, sha256: str) -> ApiKey | None:
        now = self.clock()
        cached = self._cached.get(sha256)
        if cached is not None and now - cached[1] < KEPT_S:
            return cached[0]
        row = await self.keys.by_hash(sha256)
        if row is None:
            self._cached.pop(sha256, None)
        else:
            self._cached[sha256] = (row, now)
        return row

    async def save_use(self) -> None:
        """Save which keys were used since the last call."""
        used, self._used = self._used, set()
        if used:
            await self.keys.note_use(used)


@asynccontextmanager
async def open_key_cache(database: Database, operator_key: SecretStr | None) -> AsyncIterator[KeyCache]:
    """Open the key cache of a running service."""
    cache = KeyCache(Keys(database), None if operator_key is None else hash_of(operator_key.get_secret_value()))
    async with every(_SAVE_USE_INTERVAL_S, cache.save_use, "save the use of keys"):
        yield cache
