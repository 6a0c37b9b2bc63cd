"""A database connection outside the pool, for the most frequent statements.

Taking a connection from the pool costs three round trips (liveness check, BEGIN, COMMIT). Here each statement is its
own transaction, in one round trip. Rows that arrive while a statement runs are sent together in the next one and share
its commit. No row waits for others to join it.
"""

import asyncio
import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import URL

from app.db.database import SERVER_SETTINGS
from environment.first_line import first_line

if TYPE_CHECKING:
    import asyncpg

Row = Sequence[Any]
_REST_S = 1.0
"""After an error, how long callers use the pool instead."""
_TIMEOUT_S = 20.0
"""Client-side limit for a statement. The server's own limit is shorter, but a frozen server does not enforce it."""
_MOST_IN_GROUP = 64
_MOST_GROUP_BYTES = 4_000_000

_CLOSE_S = 2.0
_PLANNED_ONCE = {"plan_cache_mode": "force_generic_plan"}
"""Plans a statement once, not again for each number of rows: these statements find everything by primary key."""
_KNOWN = {"host", "port", "passfile", "target_session_attrs", "application_name"} | {
    f"ssl{name}" for name in ("mode", "cert", "key", "password", "rootcert", "crl")
}
"""URL parameters that mean the same to asyncpg as to psycopg."""
_NOT_NEEDED = ("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count")
"""URL parameters that only set waiting times, which `_TIMEOUT_S` limits here."""

log = structlog.get_logger(__name__)


def numbered(statement: str, names: Sequence[str]) -> str:
    """Rewrite psycopg's named parameters to asyncpg's numbered ones: $1 is the first of `names`."""
    return re.sub(r"%\((\w+)\)[sb]", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")


class OwnConnection:
    """A connection that opens on first use, and again after it broke.

    The driver is asyncpg, which takes a quarter of psycopg's time for a statement. If the URL has parameters that
    asyncpg does not know, the connection is never opened.
    """

    def __init__(self, url: URL, **parameters: str) -> None:
        """`parameters` are server settings for this connection."""
        self._url = url.set(drivername="postgresql").difference_update_query(_NOT_NEEDED)
        self._parameters = SERVER_SETTINGS | _PLANNED_ONCE | parameters
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None
        self._resting_until = 0.0 if self._url.query.keys() <= _KNOWN else math.inf

    async def execute(self, statement: str, *values: Any) -> Sequence[Row] | None:
        """Return the rows of a statement with parameters $1, $2 ...

        None means that there is no connection or the statement failed, possibly after taking effect. The caller then
        repeats it through the pool, which reports what is wrong.
        """
        import asyncpg  # imported late: it takes 0.1 s, and a process may never need it

        async with self._lock:
            if time.monotonic() < self._resting_until:
                return None
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if self._connection is None or self._connection.is_closed():
                        dsn = self._url.render_as_string(hide_password=False)
                        self._connection = await asyncpg.connect(dsn, server_settings=self._parameters)
                    rows: Sequence[Row] = await self._connection.fetch(statement, *values)
                    return rows
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                log.info("a statement failed", error=first_line(error))
                if not isinstance(error, asyncpg.DataError | asyncpg.IntegrityConstraintViolationError):
                    self._resting_until = time.monotonic() + _REST_S
                    if self._connection is not None:
                        self._connection.terminate()
                return None

    async def close(self) -> None:
        """Close the connection; the next statement opens it again."""
        async with self._lock:
            if self._connection is not None:
                import asyncpg

                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    await self._connection.close(timeout=_CLOSE_S)


class GroupedStatement:
    """A statement that handles many rows at once, given as one array per column.

    It returns at most one row for each given row. That row begins with the given row's first column, which is unique
    within a group.
    """

    def __init__(self, connection: OwnConnection, statement: str, columns: Sequence[str]) -> None:
        self._connection = connection
        self._statement = numbered(statement, columns)
        self._waiting: list[tuple[Row, asyncio.Future[Row | None]]] = []
        self._more = asyncio.Event()
        self._is_ending = False
        self._running: asyncio.Task[None] | None = None

    async def row(self, *values: Any) -> Row | None:
        """Return the statement's row for these values, or None if it returned none or failed.

        A cancellation takes effect when the statement has ended.
        """
        made: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((values, made))
        self._more.set()
        if self._running is None:
            # An empty context, because what the task logs belongs to all callers rather than to the first.
            self._running = asyncio.create_task(self._run(), name="grouped statements", context=Context())
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            await asyncio.wait({made})
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
        columns = zip(*(values for values, _ in group), strict=True)
        found: dict[Any, Row] = {}
        try:
            found = {row[0]: row for row in await self._connection.execute(self._statement, *columns) or ()}
        except Exception:
            log.exception("a statement failed")
        finally:  # after any failure callers try the pool, which reports the cause
            for values, made in group:
                made.set_result(found.get(values[0]))

    def _next_group(self) -> list[tuple[Row, "asyncio.Future[Row | None]"]]:
        """Take the oldest waiting rows, at most one for each value of the first column."""
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
