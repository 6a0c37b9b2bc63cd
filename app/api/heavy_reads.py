"""Reads that take seconds, such as the verification of a run: one at a time, with projects in rotation.

Each has a separate thread, event loop and database connections, so that it does not take these from other requests.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy import URL

from app.aio.event_loops import run_in_thread
from app.aio.fair_turns import FairTurns
from app.db.database import Database, make_database, make_engine

Result = TypeVar("Result")
WAITING = 8
"""Maximum number of a project's reads that wait for their turn."""


class HeavyReads:
    """The heavy reads of a service."""

    def __init__(self, database: URL) -> None:
        self._database = database
        self._turns = FairTurns(1, WAITING)

    async def do(self, project: str, read: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        """Run `read` on the project's turn and return its result. Raises TooManyRequests if too many wait."""
        async with self._turns.turn(project):
            return await run_in_thread(lambda: self._connected(read), "heavy-read")

    async def _connected(self, read: Callable[[Database], Coroutine[Any, Any, Result]]) -> Result:
        engine = make_engine(self._database)
        try:
            return await read(make_database(engine))
        finally:
            await engine.dispose()
