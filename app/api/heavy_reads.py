"""Reads that take long, such as the verification of a run: one at a time, with projects in rotation.

Each has a separate thread, event loop and database connections, so that it does not take these from other requests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from typing import Any, TypeVar

from sqlalchemy import URL

from learnloop_service.app.aio.event_loops import run_in_thread
from learnloop_service.app.aio.fair_turns import FairTurns
from learnloop_service.app.db.database import Database, make_database, make_engine

Result = TypeVar("Result")
Read = Callable[[Database], Coroutine[Any, Any, Result]]
WAITING = 8
"""Maximum number of a project's reads that wait for their turn."""
_SHORT_WAITING = 100
"""Maximum number of a project's reads for open pages, which repeat them, that wait for their turn."""
_READERS = 10_000
"""Maximum number of waiting reads of the next piece of an answer: at most one for each connection."""
_KEEP_S = 60.0
_KEPT = 256
"""Maximum number of kept results, each of which is at most some 100 kB."""


class HeavyReads:
    """The heavy reads of a service."""

    def __init__(self, database: URL) -> None:
        self._database = database
        self._turns = FairTurns(1, WAITING)
        self._kept: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        """Reads by key, each with the time when it began, oldest first."""

    async def do(self, project: str, read: Read[Result], waiting: int | None = None) -> Result:
        """Run `read` on the project's turn and return its result. Raises TooManyRequests if too many wait."""
        async with self._turns.turn(project, waiting):
            return await run_in_thread(lambda: self._connected(read), "heavy-read")

    async def cached(self, project: str, key: Hashable, read: Read[Result]) -> Result:
        """Like `do`, but return the result of an equal read that is in progress, or began in the last minute.

        `key` names the question and the state of what it is about.
        """
        now = time.monotonic()
        begun_at, task = self._kept.get(key, (0.0, None))
        if task is None or now - begun_at > _KEEP_S or _has_failed(task):
            task = asyncio.create_task(self.do(project, read, _SHORT_WAITING))
            task.add_done_callback(_has_failed)
            self._kept.pop(key, None)
            self._kept[key] = (now, task)
            while len(self._kept) > _KEPT or now - next(iter(self._kept.values()))[0] > _KEEP_S:
                del self._kept[next(iter(self._kept))]
        result: Result = await asyncio.shield(task)
        return result

    async def pieces(self, project: str, next_piece: Read[bytes | None]) -> AsyncIterator[bytes]:
        """Yield what `next_piece` returns until it is None, each in a turn. A slow reader delays only itself."""
        while (piece := await self.next_piece(project, next_piece)) is not None:
            yield piece

    async def next_piece(self, project: str, read: Read[Result]) -> Result:
        """Like `do`, for a part of an answer that has begun, which is never refused."""
        return await self.do(project, read, _READERS)

    async def _connected(self, read: Read[Result]) -> Result:
        engine = make_engine(self._database)
        try:
            return await read(make_database(engine))
        finally:
            await engine.dispose()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    """Whether a read ended without a result. The error counts as retrieved: whoever waits for it gets it."""
    return task.done() and (task.cancelled() or task.exception() is not None)
