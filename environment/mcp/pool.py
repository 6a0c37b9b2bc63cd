"""The sessions of a run: each serves one episode, some are begun before they are wanted, all end with the run."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from environment.mcp.session import McpSession

_AHEAD = 2
"""Sessions that are begun before they are wanted, once a second one was."""
_STALE_S = 60.0
"""After that a server may have forgotten a session that nobody used."""


class SessionPool:
    """Sessions for as many episodes at a time as are allowed. It belongs to one event loop."""

    def __init__(self, begin: Callable[[], McpSession], most: int) -> None:
        self._begin = begin
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._ahead: deque[McpSession] = deque()
        self._living: set[McpSession] = set()
        self._loop = asyncio.get_running_loop()
        self._taken = 0

    async def take(self) -> McpSession:
        """A session that no other episode had or will have, once there is a place for it. Raises EpisodeFailed."""
        await self._places.acquire()
        session = self._next()
        session.task.add_done_callback(lambda _: self._places.release())
        self._taken += 1
        if self._taken > 1:
            self._begin_ahead()
        try:
            await session.ready()
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """Kill what is left; from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and with it everything that ran on it
            self._loop.call_soon_threadsafe(self._kill)

    def _kill(self) -> None:
        for session in tuple(self._living):
            session.kill()

    def _next(self) -> McpSession:
        now = self._loop.time()
        while self._ahead:
            session = self._ahead.popleft()
            if now - session.begun_at < _STALE_S and not session.task.done():
                return session
            session.close()
        return self._started()

    def _begin_ahead(self) -> None:
        while len(self._ahead) < _AHEAD and len(self._living) < self._most:
            self._ahead.append(self._started())

    def _started(self) -> McpSession:
        session = self._begin()
        self._living.add(session)
        session.task.add_done_callback(lambda _: self._living.discard(session))
        return session
