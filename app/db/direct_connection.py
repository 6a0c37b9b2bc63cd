"""A database connection outside the pool, for the most frequent statements.

Taking a connection from the pool costs three round trips (liveness check, BEGIN, COMMIT). Here each statement is its
own transaction, in one round trip. Rows that arrive while a statement runs are sent together in the next one and share
its commit. No row waits for others to join it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import Any

import psycopg
import structlog
from sqlalchemy import URL

from learnloop_service.app.db.connecting import SERVER_SETTINGS, connect
from learnloop_service.app.db.database import has_ended
from learnloop_service.environment.first_line import first_line

Row = Sequence[Any]
_BACKOFF_S = 1.0
"""After an error, how long callers use the pool instead."""
_CONNECT_S = 5
_TIMEOUT_S = 20.0
"""Client-side limit for a statement. The server's own limit is shorter, but a frozen server does not enforce it."""
_MAX_GROUP_ROWS = 64
_MAX_GROUP_BYTES = 4_000_000
_GENERIC_PLANS = {"plan_cache_mode": "force_generic_plan"}
"""Plans a statement once, not again for each number of rows: these statements find everything by primary key."""

log = structlog.get_logger(__name__)


class DirectConnection:
    """A connection that opens on first use, and again after it broke."""

    def __init__(self, url: URL, **settings: str) -> None:
        """`settings` are server settings for this connection."""
        self._url = url
        self._settings = SERVER_SETTINGS | _GENERIC_PLANS | settings
        self._lock = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._unavailable_until = 0.0

    async def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> Sequence[Row] | None:
        """Return the rows of a statement with parameters `%(name)s`.

        None means that there is no connection or the statement failed, possibly after taking effect. The caller then
        repeats it through the pool, which reports what is wrong.
        """
        async with self._lock:
            if time.monotonic() < self._unavailable_until:
                return None
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if self._connection is None or has_ended(self._connection):
                        await self._close()
                        self._connection = await connect(
                            self._url, self._settings, connect_timeout=_CONNECT_S, prepare_threshold=0
                        )
                    cursor = await self._connection.execute(statement.encode(), values, binary=True)
                    return await cursor.fetchall() if cursor.description else []
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.info("a statement failed", error=first_line(error))
                if not isinstance(error, psycopg.DataError | psycopg.IntegrityError):
                    self._unavailable_until = time.monotonic() + _BACKOFF_S
                    await self._close()
                return None

    async def close(self) -> None:
        """Close the connection; the next statement opens it again."""
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


class GroupedStatement:
    """A statement that handles many rows together, given as one array per column.

    It returns at most one row for each given row. That row begins with the given row's first column, which is unique
    within a group.
    """

    def __init__(self, connection: DirectConnection, statement: str, columns: Sequence[str]) -> None:
        """`columns` are the names of the statement's parameters, in the order of a row's values."""
        self._connection = connection
        self._statement = statement
        self._columns = columns
        self._waiting: list[tuple[Row, asyncio.Future[Row | None]]] = []
        self._more = asyncio.Event()
        self._is_ending = False
        self._running: asyncio.Task[None] | None = None

    async def row(self, *values: Any) -> Row | None:
        """Return the statement's row for these values, or None if it returned none or failed.

        A cancellation takes effect when the statement has ended.
        """
        future: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((values, future))
        self._more.set()
        if self._running is None:
            # An empty context, because what the task logs belongs to all callers rather than to the first.
            self._running = asyncio.create_task(self._run(), name="grouped statements", context=Context())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

    async def end(self) -> None:
        """Return once all waiting rows have been executed. No row can be added afterwards."""
        self._is_ending = True
        self._more.set()
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        while self._waiting or not self._is_ending:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                await self._execute(self._next_group())

    async def _execute(self, group: Sequence[tuple[Row, "asyncio.Future[Row | None]"]]) -> None:
        columns = arrays(self._columns, [values for values, _ in group])
        rows: dict[Any, Row] = {}
        try:
            rows = {row[0]: row for row in await self._connection.execute(self._statement, columns) or ()}
        except Exception:
            log.exception("a statement failed")
        finally:  # after any failure callers try the pool, which reports the cause
            for values, future in group:
                future.set_result(rows.get(values[0]))

    def _next_group(self) -> list[tuple[Row, "asyncio.Future[Row | None]"]]:
        """Take the oldest waiting rows, at most one for each value of the first column."""
        group: dict[Any, tuple[Row, asyncio.Future[Row | None]]] = {}
        later, size = [], 0
        for waiter in self._waiting:
            values, _ = waiter
            size += sum(len(value) for value in values if isinstance(value, bytes))
            if values[0] in group or len(group) == _MAX_GROUP_ROWS or (group and size > _MAX_GROUP_BYTES):
                later.append(waiter)
            else:
                group[values[0]] = waiter
        self._waiting = later
        return list(group.values())


def arrays(names: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as one array per column, by the column's name."""
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
