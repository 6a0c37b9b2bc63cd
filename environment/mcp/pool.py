"""The sessions of a run: each serves one episode, some start before they are needed, and all end with the run."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from learnloop_service.environment.mcp.session import McpSession

_SPARE_SESSIONS = 2
"""Number of sessions to start in advance, once a second session has been requested."""
_STALE_S = 60.0
"""Age in seconds after which a server can have forgotten an unused session."""


class SessionPool:
    """Limits the number of concurrent sessions. It belongs to one event loop."""

    def __init__(self, begin: Callable[[], McpSession], most: int) -> None:
        self._begin = begin
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._spares: deque[McpSession] = deque()
        self._living: set[McpSession] = set()
        self._loop = asyncio.get_running_loop()
        self._requested = 0

    async def take(self) -> McpSession:
        """Wait for a free place and return a session that serves only this episode. Raises EpisodeFailed."""
        await self._places.acquire()
        session = self._next()
        session.task.add_done_callback(lambda _: self._places.release())
        self._requested += 1
        while self._requested > 1 and len(self._spares) < _SPARE_SESSIONS and len(self._living) < self._most:
            self._spares.append(self._started())
        try:
            await session.ready()
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """Kill the remaining sessions; can be called from any thread."""
        with suppress(RuntimeError):  # The loop is closed, which ended everything that ran on it.
            self._loop.call_soon_threadsafe(self._kill)

    def _kill(self) -> None:
        for session in tuple(self._living):
            session.kill()

    def _next(self) -> McpSession:
        now = self._loop.time()
        while self._spares:
            session = self._spares.popleft()
            if now - session.begun_at < _STALE_S and not session.task.done():
                return session
            session.close()
        return self._started()

    def _started(self) -> McpSession:
        session = self._begin()
        self._living.add(session)
        session.task.add_done_callback(lambda _: self._living.discard(session))
        return session
