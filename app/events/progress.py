"""Progress of watched runs between events. It is read from their rows, and never stored as events."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import dumps
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import RunStatus

_FIGURES = (Run.phase_iteration, Run.phase, Run.phase_done, Run.phase_total, Run.rollout_failures)


@dataclass(frozen=True, slots=True)
class Moved:
    """A run's progress within an iteration. `document` is its JSON text."""

    document: str


@dataclass(frozen=True, slots=True)
class Position:
    """A run's newest event and its current progress, which is None if no worker drives it."""

    event_seq: int
    moved: Moved | None


async def positions_of(database: Database, run_ids: Collection[str]) -> dict[str, Position]:
    """Return positions by run id. Deleted runs are missing."""
    query = select(Run.id, Run.status, Run.event_seq, *_FIGURES).where(Run.id.in_(run_ids))
    async with database() as tx:
        rows = (await tx.execute(query)).all()
    return {row.id: Position(row.event_seq, _moved(row)) for row in rows}


def _moved(row: Row[*tuple[Any, ...]]) -> Moved | None:
    if row.status != RunStatus.RUNNING or row.phase is None:
        return None
    figures = {"iteration": row.phase_iteration, "phase": row.phase, "done": row.phase_done, "total": row.phase_total}
    return Moved(dumps({"run_id": row.id, **figures, "failures": row.rollout_failures}))
