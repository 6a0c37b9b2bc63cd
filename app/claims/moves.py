"""The only place that changes the status of a run or an evaluation."""

from typing import Any

from sqlalchemy import ColumnElement, Update, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.day_budget import CLOSE_RESERVATIONS
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.run_state import Move


def moving(table: type[Claimable], move: Move, *where: ColumnElement[bool], **values: Any) -> Update:
    """Return an update that makes the move and sets `values`, for matching rows that are in a source state of the move.

    Callers add `returning` to find out whether the move was made.
    """
    return update(table).where(table.status.in_(move.sources), *where).values(status=move.target, **values)


async def move_held(tx: AsyncSession, lease: Lease[Any], move: Move, **values: Any) -> bool:
    """Make the move on the lease's row. Returns False, without a change, if the lease is lost."""
    moved = moving(lease.table, move, lease.held(), **values).returning(lease.table.id)
    if (await tx.execute(moved)).scalar_one_or_none() is None:
        return False
    await tx.execute(CLOSE_RESERVATIONS, {"job_id": lease.id})
    return True


async def move_locked(tx: AsyncSession, row: Claimable, move: Move, **values: Any) -> None:
    """Make the move on a row that is locked and was found in a source state of the move."""
    table = type(row)
    moved = moving(table, move, table.id == row.id, **values).returning(table)
    (await tx.execute(moved, execution_options={"populate_existing": True})).scalar_one()
    await tx.execute(CLOSE_RESERVATIONS, {"job_id": row.id})
