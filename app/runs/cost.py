"""What runs cost in US dollars: the calls whose price is known, and the time of the machine at the price that it had
when the run ran."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import ColumnElement, Double, cast, delete, func, insert, or_, select, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import LedgerEntry, Run, Setting

_MACHINE = func.sum(LedgerEntry.seconds) / 3600 * func.coalesce(Run.machine_price_per_hour, 0)
COST: ColumnElement[float] = (
    select(func.coalesce(func.sum(LedgerEntry.usd), 0) + _MACHINE)
    .where(LedgerEntry.run_id == Run.id)
    .having(or_(func.count(LedgerEntry.usd) > 0, Run.machine_price_per_hour.is_not(None)))
    .correlate(Run)
    .scalar_subquery()
)
"""Selects the cost of a run so far; null if no price is known."""
_PRICE = "machine_price_per_hour"
STORED_PRICE: ColumnElement[float] = select(cast(Setting.value, Double)).where(Setting.name == _PRICE).scalar_subquery()
"""Selects the stored price of the machine."""


class Cost(NamedTuple):
    """What work has cost in US dollars; None where no price is known."""

    calls_usd: float | None
    machine_usd: float | None
    total_usd: float | None


def cost_of(calls_usd: Iterable[float | None], seconds: float, price_per_hour: float | None) -> Cost:
    """Return the cost of some calls, None if the price of a call is unknown, and of machine time at a price."""
    priced = [usd for usd in calls_usd if usd is not None]
    calls = math.fsum(priced) if priced else None
    machine = None if price_per_hour is None else seconds / 3600 * price_per_hour
    both = [usd for usd in (calls, machine) if usd is not None]
    return Cost(calls, machine, sum(both) if both else None)


async def stored_price(database: Database) -> float | None:
    """Return the price in US dollars of an hour of a machine whose process names none; None if no price is stored."""
    async with database() as tx:
        return (await tx.execute(select(STORED_PRICE))).scalar_one()


async def store_price(database: Database, price_per_hour: float | None) -> None:
    """Change the stored price. Runs keep theirs; runs that started before any price was stored get the first one."""
    async with database.begin() as tx:
        await tx.execute(delete(Setting).where(Setting.name == _PRICE))
        if price_per_hour is None:
            return
        await tx.execute(insert(Setting).values(name=_PRICE, value=price_per_hour))
        unpriced = Run.machine_price_per_hour.is_(None), Run.started_at.is_not(None)
        await tx.execute(update(Run).where(*unpriced).values(machine_price_per_hour=price_per_hour))
