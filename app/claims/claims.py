"""Claims: which worker drives which run or evaluation.

A row can be claimed if it is queued, or if its worker has not renewed the lease in time.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic

from sqlalchemy import ColumnElement, and_, func, null, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.day_budget import Now, is_open
from learnloop_service.app.claims.lease import Lease, Row, lapsed, until
from learnloop_service.app.claims.moves import move_held, move_locked
from learnloop_service.app.claims.turns import in_turn, turns
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import Move, RunStatus
from learnloop_service.environment.json_type import Json

MAX_CLAIMS = 5
"""Maximum number of claims without any progress before the work fails."""
_CLAIMING = 0x636C61696D
"""Key of the advisory lock that serializes claims, so that limits and turns hold."""


class Claims(Generic[Row]):
    """One worker's claims on the rows of a table. Each call is one transaction."""

    table: type[Row]
    noun: ClassVar[str]
    """The word for a row in messages."""
    append: Callable[[AsyncSession, str, EventType, str, Mapping[str, Any]], Awaitable[int]]
    """Appends an event to the log of a row: transaction, row id, event type, actor, data."""
    started: ClassVar[EventType]
    released: ClassVar[EventType]
    failed: ClassVar[EventType]
    unowned: ClassVar[Mapping[str, Any]]
    """Columns to set on a row that no worker owns any more."""
    now: Now = staticmethod(func.clock_timestamp)
    """The time by which days end."""

    def __init__(self, database: Database, worker: str, *, ttl_s: float, engine: str) -> None:
        """Set up claims by `worker`. `engine` is the name of the engine that the worker can reach."""
        self._database = database
        self.worker = worker
        self.ttl_s = ttl_s
        self._engine = engine

    def _conditions(self) -> Sequence[ColumnElement[bool]]:
        """Return further conditions that a row must meet for this worker to claim it."""
        return ()

    def _extra_columns(self) -> Mapping[str, Any]:
        """Return further columns that a claim sets."""
        return {}

    async def _final_data(self, tx: AsyncSession, id: str) -> Mapping[str, Any]:
        """Return what the event of giving a row up contains besides the error."""
        return {}

    async def claim(self) -> tuple[Row, Lease[Row]] | None:
        """Claim the next row in turn. Returns None if there is none."""
        async with self._database.begin() as tx:
            await tx.execute(select(func.pg_advisory_xact_lock(_CLAIMING)))
            while (row := await self._next(tx)) is not None:
                if row.claims < MAX_CLAIMS or self._lost_it(row):
                    return await self._take(tx, row)
                await self._give_up(tx, row)
        return None

    async def _next(self, tx: AsyncSession) -> Row | None:
        table, turn = self.table, turns(self.table)
        orphaned = and_(table.status == RunStatus.RUNNING, lapsed(table.lease_until))
        query = (
            select(table)
            .outerjoin(turn, turn.c.project == table.project)
            .where(
                or_(table.status == RunStatus.QUEUED, orphaned),
                or_(table.engine.is_(None), table.engine == self._engine),
                is_open(table, self.now),
                *self._conditions(),
            )
            .order_by(*in_turn(table, turn))
            .limit(1)
            .with_for_update(of=table, skip_locked=True)
        )
        return (await tx.execute(query)).scalar_one_or_none()

    def _lost_it(self, row: Row) -> bool:
        """Whether this worker has the row and could not renew its lease, as when the database crashed. Nothing died:
        each worker process has a name of its own."""
        return row.owner == self.worker

    async def _take(self, tx: AsyncSession, row: Row) -> tuple[Row, Lease[Row]]:
        table, previous = self.table, row.owner
        values = {
            "owner": self.worker,
            "epoch": table.epoch + 1,
            "claims": table.claims + (0 if self._lost_it(row) else 1),
            "claimed_at": func.clock_timestamp(),
            "lease_until": until(self.ttl_s),
            "started_at": func.coalesce(table.started_at, func.now()),
            "wait_reason": None,
            "shortage": null(),
            **self._extra_columns(),
        }
        await move_locked(tx, row, Move.CLAIM, **values)
        lease = Lease(table, row.id, row.epoch, self.worker)
        data = {"worker": self.worker, "epoch": row.epoch, "attempt": row.claims, "after": previous}
        await self.append(tx, row.id, self.started, lease.actor, data)
        await tx.refresh(row)
        tx.expunge(row)
        return row, lease

    async def _give_up(self, tx: AsyncSession, row: Row) -> None:
        reason = (
            f"given up: {MAX_CLAIMS} workers took the {self.noun}, one after another, and each ended before it saved "
            f"any progress (the last one was {row.owner})"
        )
        values = {"error": reason, "finished_at": func.now(), **self.unowned}
        await move_locked(tx, row, Move.GIVE_UP, **values)
        data = {"error": reason, **await self._final_data(tx, row.id)}
        await self.append(tx, row.id, self.failed, "system", data)

    async def release(self, lease: Lease[Row], reason: str | None = None, shortage: Json = None) -> None:
        """Let any worker continue immediately, or because of `shortage` once a budget for the day has room again. Does
        nothing if the lease is lost."""
        # A worker that shuts down cleanly does not count against the work.
        values = {**self.unowned, "claims": func.greatest(self.table.claims - 1, 0)}
        values |= {"wait_reason": reason, "shortage": shortage} if shortage else {}
        async with self._database.begin() as tx:
            if await move_held(tx, lease, Move.RELEASE, **values):
                if shortage and not shortage.get("waits"):
                    await self.append(tx, lease.id, EventType.BUDGET_REACHED, lease.actor, shortage)
                await self.append(tx, lease.id, self.released, lease.actor, {})

    async def expire(self, owner: str) -> None:
        """End the leases of a worker that is known to be dead."""
        dead = update(self.table).where(self.table.status == RunStatus.RUNNING, self.table.owner == owner)
        async with self._database.begin() as tx:
            await tx.execute(dead.values(lease_until=None))
