"""Counts what a job uses to its budgets for a day while it is driven, and stops it when they are used up.

Whatever counts locks the budgets first, so that jobs at the same time never exceed them together.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.aio.event_loops import run_on_loop, shielded
from learnloop_service.app.aio.periodic import every
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.claims import day_budget
from learnloop_service.app.claims.day_budget import RESERVED, Amounts, BudgetOwner, Now
from learnloop_service.app.claims.lease import Lease, LeaseLost, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.runs.budget import BudgetExceeded, Meter, MeterReservation, RunBudgetReached, RunUsage
from learnloop_service.app.runs.cost import STORED_PRICE
from learnloop_service.training.budget import Usage

AHEAD_S = 6.0
"""Seconds that a job pays in advance, so that it is stopped before it exceeds a budget. It pays twice in that time."""
_AGAIN = timedelta(seconds=10)
"""Time until a job is tried again that does not fit because of what others have reserved."""
_LEAST = 1e-6
"""What is left at least when a call begins whose usage cannot be foreseen."""
_NOTHING = {"usd": 0.0, "tokens": 0, "minutes": 0.0}
_SAVE = text(
    """WITH earlier AS (UPDATE day_use SET reserved_usd = 0, reserved_tokens = 0
    WHERE job_id = :job_id AND day = CAST(:day AS date) - 1)
    INSERT INTO day_use AS old (day, job_id, project, key_id, usd, tokens, minutes, reserved_usd, reserved_tokens)
    VALUES (:day, :job_id, :project, :key_id, :usd, :tokens, :minutes, :reserved_usd, :reserved_tokens)
    ON CONFLICT (day, job_id) DO UPDATE SET usd = old.usd + excluded.usd, tokens = old.tokens + excluded.tokens,
    minutes = old.minutes + excluded.minutes, reserved_usd = excluded.reserved_usd,
    reserved_tokens = excluded.reserved_tokens"""
)
"""Adds what a job used today, and replaces what it has reserved."""


class DaySpending:
    """What a job that is driven uses of budgets for a day."""

    def __init__(self, database: Database, row: Any, lease: Lease[Any], meter: Meter, now: Now) -> None:
        self._database, self._row, self._lease, self._meter, self._now = database, row, lease, meter, now
        self._main_loop, self._lock = asyncio.get_running_loop(), asyncio.Lock()
        self._paid_until, self._counted, self.limited = time.monotonic(), Usage(), False

    async def reserve(self, reservation: MeterReservation, usage: Usage | None) -> BudgetExceeded | None:
        """Reserve what a call needs, or all that is left if that cannot be foreseen; return why it does not fit.

        Called on any event loop. Not even a cancellation leaves open what was reserved. Raises LeaseLost.
        """
        reserving = partial(self._count, None if usage is None else _reserved(usage), reservation)
        return await shielded(run_on_loop(self._main_loop, retry_while_database_is_down(reserving)))

    async def pay(self, *, is_over: bool = False) -> BudgetExceeded | None:
        """Pay for the next seconds, or take back what is left of them; return why they do not fit, in time to stop."""
        more_s = time.monotonic() + (0.0 if is_over else AHEAD_S) - self._paid_until
        if (exceeded := await self._count({"minutes": more_s / 60})) is None:
            self._paid_until += more_s
        return exceeded

    async def _count(
        self, wanted: Amounts | None, reservation: MeterReservation | None = None
    ) -> BudgetExceeded | None:
        """Save what calls have used and what is reserved, and then count what is wanted, if it fits."""
        row, by = self._row, self._row.started_by or {}
        async with self._lock:
            async with self._database.begin() as tx:
                limits = await day_budget.limits_of(tx, day_budget.owners_of(row.project, row.started_by), lock=True)
                await require(tx, self._lease)  # only now: renewing the lease must not wait for others' calls
                moment, price = (await tx.execute(select(self._now(), STORED_PRICE))).one()
                moment, reserved = moment.astimezone(UTC), _reserved(self._meter.reserved)
                total, before = self._meter.total, self._counted  # read last: what is used meanwhile counts twice
                used = {"usd": (total.usd or 0.0) - (before.usd or 0.0), "tokens": total.tokens - before.tokens}
                saved = {"day": moment.date(), "job_id": row.id, "project": row.project, "key_id": by.get("id")}
                await tx.execute(_SAVE, saved | _NOTHING | reserved | used)
                if reservation is None and wanted is not None:
                    per_hour = getattr(row, "machine_price_per_hour", None) or price or 0.0
                    wanted = {**wanted, "usd": wanted["minutes"] / 60 * per_hour}
                more = await _fitting(tx, limits, wanted, moment)
                if not isinstance(more, BudgetExceeded):
                    reserved = {name: amount + more.get(name, 0) for name, amount in reserved.items()}
                    await tx.execute(_SAVE, saved | _NOTHING | more | reserved)
            self._counted, self.limited = total, bool(limits)
            if isinstance(more, BudgetExceeded):
                return more
            if reservation is not None:  # before the lock is released: the next transaction saves it again
                reservation.of_day += Usage(0, int(more.get("reserved_tokens", 0)), more.get("reserved_usd", 0.0))
            return None


async def _fitting(
    tx: AsyncSession, limits: Sequence[tuple[BudgetOwner, Amounts]], wanted: Amounts | None, moment: datetime
) -> dict[str, float] | BudgetExceeded:
    """Return what is wanted, or all that is left; or why it does not fit."""
    granted = dict(wanted or {})
    for owner, most in limits:
        used = await day_budget.usage_of(tx, owner, moment.date())
        for limit, maximum in most.items():
            unit, at_once, _ = limit.removeprefix("max_").partition("_at_once")
            reserved, spent = f"reserved_{unit}", 0.0 if at_once else used[unit]
            taken = spent + used.get(reserved, 0.0)
            needed = granted.get(reserved, granted.get(unit, 0.0))
            if wanted is None and reserved in RESERVED:
                granted[reserved], needed = min(granted.get(reserved, maximum), maximum - taken), _LEAST
            if needed > 0 and taken + needed > maximum + _LEAST / 1000:
                waits = spent + needed <= maximum
                until = moment + _AGAIN if waits else None if at_once else day_budget.midnight_after(moment)
                usage = RunUsage(used["usd"], used["minutes"], int(used["tokens"]))
                again, whose = until.isoformat(" ", "seconds") if until else None, f"{owner.kind} {owner.name}"
                return BudgetExceeded(limit, maximum, taken + needed, usage, whose, owner.setting, again, waits)
    return granted


def _reserved(usage: Usage) -> dict[str, float]:
    return {"reserved_usd": usage.usd or 0.0, "reserved_tokens": usage.tokens}


@asynccontextmanager
async def spending(
    database: Database, row: Any, lease: Lease[Any], meter: Meter, now: Now = func.clock_timestamp
) -> AsyncIterator[None]:
    """Count what the caller's task uses for a job to its budgets for a day. Raises RunBudgetReached."""
    day = meter.day = DaySpending(database, row, lease, meter, now)
    task, exceeded = asyncio.current_task(), await retry_while_database_is_down(day.pay)

    async def pay() -> None:
        nonlocal exceeded
        with suppress(LeaseLost):
            if exceeded is None and (exceeded := await day.pay()) is not None and task is not None:
                task.cancel()

    try:
        if exceeded is not None:
            raise RunBudgetReached(exceeded)
        async with every(AHEAD_S / 2, pay, "budgets for a day"):
            yield
    except asyncio.CancelledError:
        if exceeded is not None and task is not None and task.uncancel() == 0:
            raise RunBudgetReached(exceeded) from None
        raise
    finally:
        with suppress(LeaseLost, *DATABASE_DOWN):
            await day.pay(is_over=True)
