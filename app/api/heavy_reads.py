"""Reads that take seconds, such as the verification of a run: one at a time, the projects in rotation, and apart.

Each has a thread, an event loop and database connections of its own, so that it takes none of them from other requests.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy import URL

from app.aio.event_loops import run_in_thread
from app.aio.fair_turns import FairTurns
from app.db.database import Database, make_database, make_engine

Result = TypeVar("Result")
WAITING = 8
"""Of each project."""


class HeavyReads:
    """Those of one service."""

    def __init__(self, database: URL) -> None:
        self._database = database
        self._turns = FairTurns(1, WAITING)

    async def do(self, project: str, read: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `read`, once it is the project's turn. Raises TooManyRequests if too many of it wait."""
        async with self._turns.turn(project):
            return await run_in_thread(lambda: self._connected(read), "heavy-read")

    async def _connected(self, read: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        engine = make_engine(self._database)
        try:
            return await read(make_database(engine))
        finally:
            await engine.dispose()
