"""Finds the caller of a credential: of an API key, of an agent session's key, or of a browser's session, which stands
for an API key.

Sessions are cached as long as keys are, so one that ended elsewhere is refused as soon as a revoked key.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.auth.agent_session_keys import AgentSessionKeys, is_session_key
from app.auth.browser_sessions import BrowserSessions, FoundSession, NewSession
from app.auth.caller import Caller
from app.auth.credentials import Credential
from app.auth.key_cache import KEPT_S, KeyCache, open_key_cache
from app.auth.keys import hash_of
from app.db.session import Sessions
from app.errors import Unauthorized
from app.settings import Settings

_MOST_CACHED = 10_000


@dataclass
class Callers:
    """The callers that this process admits."""

    keys: KeyCache
    browser_sessions: BrowserSessions
    agent_sessions: AgentSessionKeys
    clock: Callable[[], float] = time.monotonic
    _found: dict[str, tuple[FoundSession, float]] = field(default_factory=dict)
    """By the hash of their token."""

    async def caller(self, credential: Credential) -> Caller:
        """Who makes a request with it. Raises Unauthorized; it does not tell whether the credential ever existed."""
        if credential.is_session:
            return self.keys.caller_of((await self.session(credential.secret)).key)
        if is_session_key(credential.secret):
            return await self.agent_sessions.caller(credential.secret)
        return await self.keys.caller(credential.secret)

    def has(self, credential: Credential) -> bool:
        """Whether it was right when it was looked up last. No query."""
        if credential.is_session:
            return hash_of(credential.secret) in self._found
        if is_session_key(credential.secret):
            return self.agent_sessions.has(credential.secret)
        return self.keys.has(credential.secret)

    async def session(self, token: str) -> FoundSession:
        """The session with that token. Raises Unauthorized."""
        sha256, now = hash_of(token), self.clock()
        kept = self._found.get(sha256)
        if kept is not None and now - kept[1] < KEPT_S:
            return kept[0]
        self._found.pop(sha256, None)
        if (found := await self.browser_sessions.find(token)) is None:
            raise Unauthorized("The session has ended. Sign in again with an API key.")
        if len(self._found) >= _MOST_CACHED:
            self._found.clear()
        self._found[sha256] = (found, now)
        return found

    async def open_session(self, key: str) -> NewSession:
        """A new session of that key. Raises Unauthorized."""
        return await self.browser_sessions.open(await self.keys.find(key))

    async def end_session(self, token: str) -> None:
        """End it: in this process immediately, in others as soon as they look it up again."""
        await self.browser_sessions.end(token)
        self._found.pop(hash_of(token), None)


@asynccontextmanager
async def open_callers(sessions: Sessions, settings: Settings) -> AsyncIterator[Callers]:
    """The callers of a running service."""
    async with open_key_cache(sessions, settings.operator_key) as keys:
        browser_sessions = BrowserSessions(sessions, keys.operator_hash, settings.session_lifetime)
        yield Callers(keys, browser_sessions, AgentSessionKeys(sessions, keys))
