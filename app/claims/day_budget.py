"""Budgets for a day: what all jobs of a project, or all that a key started, may use until midnight UTC.

A budget is a setting. A row of `day_use` says what a job used on a day, and what it has reserved for calls in progress,
which counts as used once its lease ends: the calls of a worker that died may have been paid for.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, DateTime, cast, exists, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DayUse, Setting
from learnloop_service.app.db.tables.claimable import Claimable

Now = Callable[[], ColumnElement[datetime]]
Amounts = Mapping[str, float]
"""Amounts by column of `day_use`, or limits such as `max_usd` and `max_tokens_at_once`."""
UNITS, RESERVED = ("usd", "tokens", "minutes"), ("reserved_usd", "reserved_tokens")
CLOSE_RESERVATIONS = text(
    """UPDATE day_use SET usd = usd + reserved_usd, tokens = tokens + reserved_tokens, reserved_usd = 0,
    reserved_tokens = 0 WHERE job_id = :job_id AND (reserved_usd > 0 OR reserved_tokens > 0)"""
)
"""Counts what a job has reserved as used, because its lease ends."""


class BudgetOwner(NamedTuple):
    """A project, or an API key by its id."""

    kind: str
    id: str
    name: str

    @property
    def setting(self) -> str:
        """Name of the setting with the limits."""
        return f"budget/{self.kind}/{self.id}"


def midnight_after(moment: datetime) -> datetime:
    """Return the end of a day in UTC."""
    return moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def owners_of(project: str, started_by: Mapping[str, Any] | None) -> Sequence[BudgetOwner]:
    """Return those whose budgets a job counts to."""
    key = started_by and started_by["id"] and BudgetOwner("key", started_by["id"], started_by["name"])
    return [BudgetOwner("project", project, project), *([key] if key else [])]


async def limits_of(
    tx: AsyncSession, owners: Sequence[BudgetOwner], *, lock: bool = False
) -> Sequence[tuple[BudgetOwner, Amounts]]:
    """Return the limits of those that have any. With `lock`, other transactions that count
    to them wait until this one ends."""
    named = select(Setting).where(Setting.name.in_([owner.setting for owner in owners])).order_by(Setting.name)
    named = named.with_for_update() if lock else named
    stored: dict[str, Any] = {row.name: row.value for row in (await tx.execute(named)).scalars()}
    return [(owner, stored[owner.setting]) for owner in owners if owner.setting in stored]


async def usd_of_day(database: Database, project: str, started_by: Mapping[str, Any] | None) -> float | None:
    """Return a limit in dollars that a new job would have; None if there is none."""
    async with database() as tx:
        limits = [limits for _, limits in await limits_of(tx, owners_of(project, started_by))]
    return next((most[name] for most in limits for name in most if "usd" in name), None)


async def usage_of(tx: AsyncSession, owner: BudgetOwner, day: date) -> Amounts:
    """Return what an owner's jobs used on a day, and what they have reserved, possibly just before it began."""
    sums: list[ColumnElement[Any]] = [func.sum(getattr(DayUse, unit)).filter(DayUse.day == day) for unit in UNITS]
    sums += [func.sum(getattr(DayUse, name)) for name in RESERVED]
    whose = (DayUse.project if owner.kind == "project" else DayUse.key_id) == owner.id
    row = (await tx.execute(select(*sums).where(whose, DayUse.day >= day - timedelta(days=1)))).one()
    return {name: float(value or 0) for name, value in zip((*UNITS, *RESERVED), row, strict=True)}


def is_open(table: type[Claimable], now: Now) -> ColumnElement[bool]:
    """Return the condition that no budget keeps a row in the queue: its day is over, or the limit was changed."""
    budget, limit, most, until = (table.shortage[name] for name in ("budget", "limit", "max", "until"))
    same = exists().where(Setting.name == budget.astext, Setting.value.op("->")(limit.astext) == most)
    return or_(budget.astext.is_(None), cast(until.astext, DateTime(timezone=True)) <= now(), ~same)
