"""A lease: the right of one worker to work on a run or an evaluation for a while. All times are the database's.

Each claim raises the row's epoch, the fencing token that every commit must carry (`Lease.held`): a worker with an older
one changes nothing, and stops.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, SQLColumnExpression, and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables.claimable import Claimable
from app.domain.run_state import RunStatus

Row = TypeVar("Row", bound=Claimable)


@dataclass(frozen=True, slots=True)
class Lease(Generic[Row]):
    """The right to work on a row of `table`."""

    table: type[Row]
    id: str
    epoch: int
    worker: str

    def held(self) -> ColumnElement[bool]:
        """True of the row while we hold the lease. We still hold one that has lapsed until another claim."""
        table = self.table
        return and_(table.id == self.id, table.epoch == self.epoch, table.status == RunStatus.RUNNING)

    @property
    def actor(self) -> str:
        """The worker's name in events."""
        return f"worker:{self.worker}"


class LeaseLost(Exception):
    """Another worker has claimed the work, or it has ended."""

    def __init__(self, lease: Lease[Any], why: str = "it is lost") -> None:
        super().__init__(f"the lease on {lease.table.__tablename__} {lease.id} with epoch {lease.epoch}: {why}")


async def require(tx: AsyncSession, lease: Lease[Any]) -> None:
    """Hold the lease until the transaction ends: the row cannot be claimed before. Raises LeaseLost."""
    query = select(lease.table.id).where(lease.held()).with_for_update(key_share=True)
    if (await tx.execute(query)).scalar_one_or_none() is None:
        raise LeaseLost(lease)


def until(ttl_s: float) -> ColumnElement[Any]:
    """The end of a lease that is taken or renewed now."""
    return func.clock_timestamp() + timedelta(seconds=ttl_s)


def lapsed(lease_until: SQLColumnExpression[Any]) -> ColumnElement[bool]:
    """Whether a lease is over, or there is none."""
    return func.coalesce(lease_until < func.clock_timestamp(), True)
