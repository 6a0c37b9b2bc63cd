"""Leases on runs: which worker drives which run. All times are the database's.

A run can be claimed if it is queued, or if its worker has not renewed the lease in time. Each claim raises the run's
epoch, the fencing token that every commit must carry (`held`): a worker with an older one changes nothing, and stops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.session import Sessions
from app.db.tables import Run
from app.domain.event_types import EventType
from app.domain.run_state import Move, RunStatus
from app.events.log import append
from app.runs.moves import moving
from training.backends.embedded import NAME as EMBEDDED

MAX_CLAIMS = 5
"""Claims of a run without any progress, before it is given up."""
_CLAIMING = 0x636C61696D
"""Advisory lock: one claim at a time, so that limits over several runs hold."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive a run."""

    run_id: str
    epoch: int
    worker: str

    def held(self) -> ColumnElement[bool]:
        """True of the run's row while we hold the lease. We still hold one that has lapsed until another claim."""
        return and_(Run.id == self.run_id, Run.epoch == self.epoch, Run.status == RunStatus.RUNNING)

    @property
    def actor(self) -> str:
        """The worker's name in events."""
        return f"worker:{self.worker}"


class LeaseLost(Exception):
    """Another worker has claimed the run, or it has ended."""

    def __init__(self, lease: Lease, why: str = "it is lost") -> None:
        super().__init__(f"the lease on run {lease.run_id} with epoch {lease.epoch}: {why}")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs may be driven at the same time; None is no limit."""

    per_project: int | None = None
    per_backend: int | None = None


class Leases:
    """Claims for one worker."""

    def __init__(
        self,
        sessions: Sessions,
        worker: str,
        *,
        ttl_s: float,
        limits: Limits,
        backends: Sequence[str],
        engine: str,
    ) -> None:
        """`backends` are those that this worker can drive; `engine` is the name of the engine that it can reach."""
        self._sessions = sessions
        self.worker = worker
        self.ttl_s = ttl_s
        self._limits = limits
        self._backends = list(backends)
        self._engine = engine

    async def claim(self) -> tuple[Run, Lease] | None:
        """Claim the oldest run that can be driven now; None if there is none."""
        async with self._sessions.begin() as session:
            await session.execute(select(func.pg_advisory_xact_lock(_CLAIMING)))
            while (found := await self._candidate(session)) is not None:
                if found.claims < MAX_CLAIMS:
                    return await self._take(session, found)
                await _give_up(session, found)
        return None

    async def _candidate(self, session: AsyncSession) -> Run | None:
        lapsed = and_(
            Run.status == RunStatus.RUNNING,
            or_(Run.lease_until.is_(None), Run.lease_until < func.clock_timestamp()),
        )
        query = (
            select(Run)
            .where(
                or_(Run.status == RunStatus.QUEUED, lapsed),
                Run.backend.in_(self._backends),
                or_(Run.engine.is_(None), Run.engine == self._engine),
                *self._within_limits(),
            )
            .order_by(Run.created_at, Run.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return (await session.execute(query)).scalar_one_or_none()

    def _within_limits(self) -> list[ColumnElement[bool]]:
        """A running run, to be taken over, is within the limits already."""
        other = Run.__table__.alias("other")
        allowed = []
        for column, limit in (("model_project", self._limits.per_project), ("backend", self._limits.per_backend)):
            if limit is not None:
                beside = (
                    select(func.count())
                    .select_from(other)
                    .where(other.c.status == RunStatus.RUNNING, other.c[column] == getattr(Run, column))
                    .where(other.c.id != Run.id)
                    .correlate(Run)
                    .scalar_subquery()
                )
                allowed.append(beside < limit)
        return allowed

    async def _take(self, session: AsyncSession, found: Run) -> tuple[Run, Lease]:
        previous = found.owner
        taken = (
            moving(
                Move.CLAIM,
                Run.id == found.id,
                owner=self.worker,
                engine=self._engine if found.backend == EMBEDDED else None,
                epoch=Run.epoch + 1,
                claims=Run.claims + 1,
                lease_until=until(self.ttl_s),
                started_at=func.coalesce(Run.started_at, func.now()),
                wait_reason=None,
            )
            .returning(Run)
            .execution_options(populate_existing=True)
        )
        run = (await session.execute(taken)).scalar_one()
        lease = Lease(run.id, run.epoch, self.worker)
        data = {"worker": self.worker, "epoch": run.epoch, "attempt": run.claims, "after": previous}
        await append(session, run.id, EventType.RUN_STARTED, lease.actor, data)
        await session.refresh(run)
        session.expunge(run)
        return run, lease

    async def release(self, lease: Lease) -> None:
        """Let any worker continue the run immediately. Does nothing if the lease is lost."""
        # A worker that stops in good order says nothing against the run.
        give = moving(Move.RELEASE, lease.held(), claims=func.greatest(Run.claims - 1, 0), **UNOWNED)
        async with self._sessions.begin() as session:
            if (await session.execute(give.returning(Run.id))).scalar_one_or_none() is not None:
                await append(session, lease.run_id, EventType.RUN_RELEASED, lease.actor)

    async def expire(self, owner: str) -> None:
        """End the leases of a worker that is known to be dead."""
        dead = update(Run).where(Run.status == RunStatus.RUNNING, Run.owner == owner)
        async with self._sessions.begin() as session:
            await session.execute(dead.values(lease_until=None))


UNOWNED: Mapping[str, Any] = {
    "owner": None,
    "lease_until": None,
    "phase": None,
    "phase_iteration": None,
    "phase_done": None,
    "phase_total": None,
}
"""The columns of a run that no worker drives."""


def until(ttl_s: float) -> ColumnElement[Any]:
    """The end of a lease that is taken or renewed now."""
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, ttl_s)


async def _give_up(session: AsyncSession, run: Run) -> None:
    reason = (
        f"given up: {MAX_CLAIMS} workers took the run, one after another, and each ended before it saved any progress "
        f"(the last one was {run.owner})"
    )
    values = {"error": reason, "finished_at": func.now(), **UNOWNED}
    await session.execute(moving(Move.GIVE_UP, Run.id == run.id, **values))
    await append(session, run.id, EventType.RUN_FAILED, "system", {"error": reason})


async def require(session: AsyncSession, lease: Lease) -> None:
    """Hold the lease until the transaction ends: the run cannot be claimed before. Raises LeaseLost."""
    query = select(Run.id).where(lease.held()).with_for_update(key_share=True)
    if (await session.execute(query)).scalar_one_or_none() is None:
        raise LeaseLost(lease)
