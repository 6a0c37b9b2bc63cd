"""The position of a queued run, and why it is waiting."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, select, tuple_

from app.db.session import Sessions
from app.db.tables import Run
from app.domain.run_state import RunStatus
from app.runs.leases import Limits


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """`position` queued runs are older; `reason` says why this one has not started."""

    position: int
    reason: str


async def queue_position(sessions: Sessions, run: Run, limits: Limits) -> QueuePosition | None:
    """None unless the run is queued."""
    if run.status != RunStatus.QUEUED:
        return None
    running = and_(Run.status == RunStatus.RUNNING, Run.id != run.id)  # it may have been claimed itself meanwhile
    counts = select(
        _count(Run.status == RunStatus.QUEUED, tuple_(Run.created_at, Run.id) < (run.created_at, run.id)),
        _count(running, Run.model_project == run.model_project),
        _count(running, Run.backend == run.backend),
        _count(running),
    )
    async with sessions() as session:
        before, of_project, on_backend, in_all = (await session.execute(counts)).one()
    if limits.per_project is not None and of_project >= limits.per_project:
        return QueuePosition(before, f"The project has reached its limit of {_runs(limits.per_project)} in progress.")
    if limits.per_backend is not None and on_backend >= limits.per_backend:
        return QueuePosition(
            before, f"The backend {run.backend} has reached its limit of {_runs(limits.per_backend)} in progress."
        )
    if before:
        return QueuePosition(before, f"{_runs(before)} {'is' if before == 1 else 'are'} ahead of it.")
    if in_all:
        return QueuePosition(0, f"It is next and starts when a worker is free: {_runs(in_all)} in progress.")
    return QueuePosition(0, "It is next and starts when a worker takes it; no run is in progress.")


def _count(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    return select(func.count()).select_from(Run).where(*conditions).scalar_subquery()


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
