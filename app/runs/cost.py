"""What runs cost in US dollars: the calls whose price is known, and the time of the machine at the price that it had
when the run ran."""

from sqlalchemy import ColumnElement, func, or_, select, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import LedgerEntry, Run

_MACHINE = func.sum(LedgerEntry.seconds) / 3600 * func.coalesce(Run.machine_price_per_hour, 0)
COST: ColumnElement[float] = (
    select(func.coalesce(func.sum(LedgerEntry.usd), 0) + _MACHINE)
    .where(LedgerEntry.run_id == Run.id)
    .having(or_(func.count(LedgerEntry.usd) > 0, Run.machine_price_per_hour.is_not(None)))
    .correlate(Run)
    .scalar_subquery()
)
"""Selects the cost of a run so far; null if no price is known."""


def machine_usd(seconds: float, price_per_hour: float | None) -> float | None:
    """Return the price of machine time in US dollars; None without a price."""
    return None if price_per_hour is None else seconds / 3600 * price_per_hour


def total_usd(usd: float | None, machine_usd: float | None) -> float | None:
    """Return the sum of what is known of both, in US dollars; None if neither is known."""
    known = [each for each in (usd, machine_usd) if each is not None]
    return sum(known) if known else None


async def price_earlier_runs(database: Database, price_per_hour: float) -> None:
    """Give this price to the runs that ran before the machine had one. They keep it when the price changes."""
    unpriced = Run.machine_price_per_hour.is_(None), Run.started_at.is_not(None)
    async with database.begin() as tx:
        await tx.execute(update(Run).where(*unpriced).values(machine_price_per_hour=price_per_hour))
