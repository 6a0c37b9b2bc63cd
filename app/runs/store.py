"""All SQL that makes and moves runs. One transaction per call; every move is a conditional UPDATE."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from sqlalchemy import ColumnElement, case, func, select, update
from sqlalchemy.exc import IntegrityError

from app import idempotency
from app.db import Sessions
from app.documents import NewDocument, save
from app.errors import Conflict, ModelBusy, NotFound
from app.models import Run
from app.runs.state import LIVE, TERMINAL, RunStatus, sources
from training.types import Progress

_INTERRUPTED = (
    "interrupted: the service stopped after iteration %s; post the learn-loop again with the same "
    "model to go on from its last checkpoint"
)


class RunStore:
    """Runs in the database."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create(self, run: Run, documents: Iterable[NewDocument] = (), *, reply: BaseModel | None = None) -> None:
        """Save a queued run, its documents and the reply that tells of it. Raises ModelBusy if a live run holds its
        model."""
        try:
            async with self._sessions.begin() as session:
                session.add(run)
                await session.flush()  # a busy model is told before a big graph is sent
                await save(session, documents)
                if reply is not None:
                    await idempotency.complete(session, 202, reply)
        except IntegrityError as error:
            holder = await self._holder(run)
            if holder is None:
                raise Conflict("the run could not be saved; try again") from error
            raise ModelBusy(f"{run.model_project}/{run.model_name}", holder) from None

    async def _holder(self, run: Run) -> str | None:
        query = select(Run.id).where(
            Run.backend == run.backend,
            Run.model_project == run.model_project,
            Run.model_name == run.model_name,
            Run.status.in_(LIVE),
        )
        async with self._sessions() as session:
            return (await session.execute(query)).scalar_one_or_none()

    async def get(self, run_id: str) -> Run:
        """Raises NotFound."""
        async with self._sessions() as session:
            run = await session.get(Run, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        return run

    async def claim(self, owner: str) -> Run | None:
        """Move the oldest queued run to running, for `owner`; None if none waits."""
        oldest = (
            select(Run.id)
            .where(Run.status == RunStatus.QUEUED)
            .order_by(Run.id)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        move = (
            update(Run)
            .where(Run.id == oldest, Run.status == RunStatus.QUEUED)
            .values(status=RunStatus.RUNNING, owner=owner, started_at=func.now())
            .returning(Run)
        )
        async with self._sessions.begin() as session:
            return (await session.execute(move)).scalar_one_or_none()

    async def beat(self, run_id: str, progress: Progress | None) -> bool:
        """Save how far a running run is; whether its cancellation was asked for."""
        values: dict[str, Any] = {"status": Run.status}
        if progress is not None:
            values = {
                "phase": progress.phase,
                "phase_iteration": progress.iteration,
                "phase_done": progress.done,
                "phase_total": progress.total,
            }
        beat = update(Run).where(Run.id == run_id).values(**values).returning(Run.cancel_requested)
        async with self._sessions.begin() as session:
            return bool((await session.execute(beat)).scalar_one_or_none())

    async def request_cancel(self, run_id: str) -> RunStatus:
        """Cancel a queued run at once, ask a running one to stop; its status then. Raises NotFound, Conflict."""
        status: ColumnElement[str] = case((Run.status == RunStatus.QUEUED, RunStatus.CANCELLED.value), else_=Run.status)
        finished = case((Run.status == RunStatus.QUEUED, func.now()), else_=Run.finished_at)
        ask = (
            update(Run)
            .where(Run.id == run_id, Run.status.in_(LIVE))
            .values(cancel_requested=True, status=status, finished_at=finished)
            .returning(Run.status)
        )
        async with self._sessions.begin() as session:
            moved = (await session.execute(ask)).scalar_one_or_none()
        if moved is not None:
            return RunStatus(moved)
        run = await self.get(run_id)
        if run.status != RunStatus.CANCELLED:
            raise Conflict(f"run {run_id} has already {run.status}")
        return RunStatus.CANCELLED

    async def finish(
        self, run_id: str, status: RunStatus, *, error: str | None = None, summary: Mapping[str, Any] | None = None
    ) -> bool:
        """Move a run to a final status; False if it was not in a state that allows it."""
        assert status in TERMINAL
        move = (
            update(Run)
            .where(Run.id == run_id, Run.status.in_(sources(status)))
            .values(
                status=status,
                error=error,
                summary=summary,
                finished_at=func.now(),
                phase=None,
                phase_iteration=None,
                phase_done=None,
                phase_total=None,
            )
            .returning(Run.id)
        )
        async with self._sessions.begin() as session:
            return (await session.execute(move)).scalar_one_or_none() is not None

    async def settle_interrupted(self, owner: str) -> list[str]:
        """Settle `owner`'s running runs, which nothing drives any more: cancelled if that was asked for, queued again
        if they had not finished the baseline, failed otherwise. The ids of those settled."""
        started = Run.next_iteration > 0
        settle = (
            update(Run)
            .where(Run.status == RunStatus.RUNNING, Run.owner == owner)
            .values(
                status=case(
                    (Run.cancel_requested, RunStatus.CANCELLED.value),
                    (started, RunStatus.FAILED.value),
                    else_=RunStatus.QUEUED.value,
                ),
                error=case((~Run.cancel_requested & started, func.format(_INTERRUPTED, Run.next_iteration - 1))),
                finished_at=case((Run.cancel_requested | started, func.now())),
                started_at=case((Run.cancel_requested | started, Run.started_at)),
                phase=None,
                phase_iteration=None,
                phase_done=None,
                phase_total=None,
            )
            .returning(Run.id)
        )
        async with self._sessions.begin() as session:
            return list((await session.execute(settle)).scalars())
