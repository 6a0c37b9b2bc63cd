"""The position of a queued run, and why it is waiting."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, select

from learnloop_service.app.claims.turns import turns
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs.claims import Limits
from learnloop_service.environment.wording import counted


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """How many queued runs are claimed before this one (`position`), and why it has not started (`reason`)."""

    position: int
    reason: str


async def queue_position(database: Database, run: Run, limits: Limits) -> QueuePosition | None:
    """Return the position of a queued run; None if the run is not queued."""
    if run.status != RunStatus.QUEUED:
        return None
    others = and_(Run.status == RunStatus.RUNNING, Run.id != run.id)
    counts = select(
        _ahead(run.id),
        _count(others, Run.model_project == run.model_project),
        _count(others, Run.backend == run.backend),
        _count(others),
    )
    async with database() as tx:
        before, of_project, on_backend, in_all = (await tx.execute(counts)).one()
    before = before or 0  # None if it was claimed in the meantime, or waits for a budget
    if run.shortage is not None:
        return QueuePosition(before, run.wait_reason or "")
    if limits.per_project is not None and of_project >= limits.per_project:
        most = counted(limits.per_project, "run")
        return QueuePosition(before, f"The project has reached its limit of {most} in progress.")
    if limits.per_backend is not None and on_backend >= limits.per_backend:
        most = counted(limits.per_backend, "run")
        return QueuePosition(before, f"The backend {run.backend} has reached its limit of {most} in progress.")
    if before:
        return QueuePosition(before, f"{counted(before, 'run')} {'is' if before == 1 else 'are'} ahead of it.")
    if in_all:
        return QueuePosition(0, f"It is next and starts when a worker is free: {counted(in_all, 'run')} in progress.")
    return QueuePosition(0, "It is next and starts when a worker takes it; no run is in progress.")


def _ahead(run_id: str) -> ScalarSelect[int]:
    """Count the queued runs that would be claimed before that one if no run ended meanwhile."""
    turn, oldest_first = turns(Run), (Run.created_at, Run.id)
    rank = func.row_number().over(partition_by=Run.project, order_by=oldest_first)
    oldest = func.first_value(Run.id).over(partition_by=Run.project, order_by=oldest_first)
    queued = (
        select(Run.id, (turn.c.running + rank).label("round"), turn.c.running, turn.c.served, oldest.label("oldest"))
        .join(turn, turn.c.project == Run.project)
        .where(Run.status == RunStatus.QUEUED, Run.wait_reason.is_(None))
        .subquery()
    )
    # Each round serves each project once. A project with fewer running runs was already served in an earlier round.
    order = (queued.c.round, queued.c.running.desc(), queued.c.served.nulls_first(), queued.c.oldest)
    numbered = select(queued.c.id, func.row_number().over(order_by=order).label("number")).subquery()
    return select(numbered.c.number - 1).where(numbered.c.id == run_id).scalar_subquery()


def _count(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    return select(func.count()).select_from(Run).where(*conditions).scalar_subquery()
