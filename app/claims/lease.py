"""A lease: one worker's right to work on a run or an evaluation for a limited time. All times are the database's.

Each claim raises the row's epoch, the fencing token that every commit must carry (`Lease.held`). A worker with an
older epoch cannot change anything, and stops.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, SQLColumnExpression, and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.run_state import RunStatus

Row = TypeVar("Row", bound=Claimable)


@dataclass(frozen=True, slots=True)
class Lease(Generic[Row]):
    """The right to work on a row of `table`."""

    table: type[Row]
    id: str
    epoch: int
    worker: str

    def held(self) -> ColumnElement[bool]:
        """Return the condition that we hold the lease on a row. An expired lease is still held until another claim."""
        table = self.table
        return and_(table.id == self.id, table.epoch == self.epoch, table.status == RunStatus.RUNNING)

    @property
    def actor(self) -> str:
        """The worker's name in events."""
        return f"worker:{self.worker}"


class LeaseLost(Exception):
    """Raised when another worker has claimed the work, or the work has ended."""

    def __init__(self, lease: Lease[Any], why: str = "it is lost") -> None:
        super().__init__(f"the lease on {lease.table.__tablename__} {lease.id} with epoch {lease.epoch}: {why}")


async def require(tx: AsyncSession, lease: Lease[Any]) -> None:
    """Lock the lease's row, so that it cannot be claimed before the transaction ends. Raises LeaseLost."""
    query = select(lease.table.id).where(lease.held()).with_for_update(key_share=True)
    if (await tx.execute(query)).scalar_one_or_none() is None:
        raise LeaseLost(lease)


def until(ttl_s: float) -> ColumnElement[Any]:
    """Return the end of a lease that is taken or renewed now."""
    return func.clock_timestamp() + timedelta(seconds=ttl_s)


def lapsed(lease_until: SQLColumnExpression[Any]) -> ColumnElement[bool]:
    """Return the condition that a lease has expired or was never taken."""
    return func.coalesce(lease_until < func.clock_timestamp(), True)
