"""A database connection beside the pool, for statements that are made all the time.

Taking one from the pool costs three round trips (whether it lives, BEGIN, COMMIT); here each statement is its own
transaction, in one. What comes while a statement runs goes with the next one, so that many share its commit. Nobody
waits for company.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import structlog
from sqlalchemy import URL

from app.db.session import connect_options

Values = Mapping[str, Any]
Row = tuple[Any, ...]
_REST_S = 1.0
"""After an error: until then the pool is used."""
_TIMEOUT_S = 20.0
"""The server's own limit for statements is shorter; a server that froze has none."""
_MOST_IN_GROUP = 64
_MOST_GROUP_BYTES = 4_000_000

log = structlog.get_logger(__name__)


class OwnConnection:
    """Opened when it is first used, and again after it broke."""

    def __init__(self, url: URL, **parameters: str) -> None:
        """`parameters` are the server's, for this connection."""
        self._options = connect_options(url, **parameters)
        self._lock = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self._resting_until = 0.0

    async def execute(self, statement: str, values: Values) -> list[Row] | None:
        """The rows; None: there is no connection now, or the statement failed, and it may have been done all the same.
        The same is to be tried by the pool, which says what is wrong."""
        async with self._lock:
            if time.monotonic() < self._resting_until:
                return None
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if self._connection is None:
                        self._connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
                    cursor = await self._connection.execute(statement, values)
                    return await cursor.fetchall() if cursor.description else []
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.info("a statement failed", error=str(error).splitlines()[0] if str(error) else "no answer")
                if not isinstance(error, psycopg.DataError | psycopg.IntegrityError):
                    self._resting_until = time.monotonic() + _REST_S
                    await self._drop()
                return None

    async def close(self) -> None:
        """Close it; another statement opens it again."""
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()


class GroupedStatement:
    """A statement over rows, given as an array for each column, that returns at most one row for each, which begins
    with the first column of that one. Rows of the same group differ in it."""

    def __init__(self, connection: OwnConnection, statement: str, columns: Sequence[str]) -> None:
        self._connection = connection
        self._statement = statement
        self._columns = columns
        self._waiting: list[tuple[Row, asyncio.Future[Row | None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def row(self, *values: Any) -> Row | None:
        """The statement's row for these values; None: it returned none, or it failed."""
        made: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((values, made))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="grouped statement")
        return await made

    async def end(self) -> None:
        """Wait until nothing runs."""
        if self._running is not None:
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                columns = zip(*(values for values, _ in group), strict=True)
                arrays = {name: list(column) for name, column in zip(self._columns, columns, strict=True)}
                found: dict[Any, Row] = {}
                try:
                    found = {row[0]: row for row in await self._connection.execute(self._statement, arrays) or ()}
                finally:  # whatever went wrong: the pool is tried next, and says it
                    for values, made in group:
                        if not made.done():  # else its caller has left
                            made.set_result(found.get(values[0]))
        finally:
            self._running = None
            for _, made in self._waiting:
                made.cancel()

    def _next_group(self) -> list[tuple[Row, "asyncio.Future[Row | None]"]]:
        """The oldest ones, of each first column one."""
        group: dict[Any, tuple[Row, asyncio.Future[Row | None]]] = {}
        later, size = [], 0
        for each in self._waiting:
            values, _ = each
            size += sum(len(value) for value in values if isinstance(value, bytes))
            if values[0] in group or len(group) == _MOST_IN_GROUP or (group and size > _MOST_GROUP_BYTES):
                later.append(each)
            else:
                group[values[0]] = each
        self._waiting = later
        return list(group.values())
