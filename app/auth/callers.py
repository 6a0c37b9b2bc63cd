"""Finds the caller of a credential: an API key, the key of an agent's session, or a browser's sign-in, which stands for
an API key.

Sign-ins are cached for as long as keys: one that has ended in another process is refused within the same time as a
revoked key.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from learnloop_service.app.auth.agent_session_keys import AgentSessionKeys, is_session_key
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.credentials import Credential
from learnloop_service.app.auth.key_cache import KEPT_S, KeyCache, open_key_cache
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.auth.sign_ins import FoundSignIn, NewSignIn, SignIns
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import Unauthorized
from learnloop_service.app.settings import Settings

_MOST_CACHED = 10_000


@dataclass
class Callers:
    """The callers that this process admits."""

    keys: KeyCache
    sign_ins: SignIns
    agent_sessions: AgentSessionKeys
    clock: Callable[[], float] = time.monotonic
    _cached: dict[str, tuple[FoundSignIn, float]] = field(default_factory=dict)
    """Sign-ins by the hash of their token, each with the time of the look-up."""

    async def caller(self, credential: Credential) -> Caller:
        """Return the caller of a credential. Raises Unauthorized, which does not say whether it ever existed."""
        if credential.is_sign_in:
            return self.keys.caller_of((await self.find_sign_in(credential.secret)).key)
        if is_session_key(credential.secret):
            return await self.agent_sessions.caller(credential.secret)
        return await self.keys.caller(credential.secret)

    def has(self, credential: Credential) -> bool:
        """Whether the credential was valid when it was last looked up. Makes no query."""
        if credential.is_sign_in:
            return hash_of(credential.secret) in self._cached
        if is_session_key(credential.secret):
            return self.agent_sessions.has(credential.secret)
        return self.keys.has(credential.secret)

    async def find_sign_in(self, token: str) -> FoundSignIn:
        """Find the sign-in with that token. Raises Unauthorized."""
        sha256, now = hash_of(token), self.clock()
        cached = self._cached.get(sha256)
        if cached is not None and now - cached[1] < KEPT_S:
            return cached[0]
        self._cached.pop(sha256, None)
        if (sign_in := await self.sign_ins.find(token)) is None:
            raise Unauthorized("The session has ended. Sign in again with an API key.")
        if len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        self._cached[sha256] = (sign_in, now)
        return sign_in

    async def sign_in(self, key: str) -> NewSignIn:
        """Sign in with an API key. Raises Unauthorized."""
        return await self.sign_ins.open(await self.keys.find(key))

    async def sign_out(self, token: str) -> None:
        """End a sign-in: in this process immediately, in others when they look it up again."""
        await self.sign_ins.end(token)
        self._cached.pop(hash_of(token), None)


@asynccontextmanager
async def open_callers(database: Database, settings: Settings) -> AsyncIterator[Callers]:
    """The callers of a running service."""
    async with open_key_cache(database, settings.operator_key) as keys:
        sign_ins = SignIns(database, keys.operator_hash, settings.session_lifetime)
        yield Callers(keys, sign_ins, AgentSessionKeys(database, keys))
