"""Budgets of projects and of API keys for a day. All of this needs the scope `operator`."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path
from pydantic import ConfigDict, Field
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentDatabase
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.claims.day_budget import BudgetOwner, limits_of, midnight_after, usage_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import ApiKey, Setting
from learnloop_service.app.errors import Forbidden, NotFound
from learnloop_service.app.schemas.base import RequestBody, ResponseModel

router = keyed_router("keys")
Owner = Annotated[str, Path(max_length=100, pattern=NO_NUL, description="`project:NAME`, or `key:ID` of an API key")]
_Usd = Annotated[float | None, Field(gt=0, le=1e9)]
_Tokens = Annotated[int | None, Field(gt=0, le=10**15)]


class DayBudget(RequestBody):
    """What may be used on a day in UTC; null for no limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_usd": 20, "max_tokens_at_once": 500_000}]})

    max_usd: _Usd = None
    """US dollars: calls whose price is known, and the time of a machine whose price is known."""
    max_tokens: _Tokens = None
    """Tokens of agents and judges."""
    max_minutes: _Usd = None
    """Minutes for which workers drive runs and evaluations, added up."""
    max_usd_at_once: _Usd = None
    """US dollars that all calls in progress may need together."""
    max_tokens_at_once: _Tokens = None
    """Tokens that they may need."""


class DayBudgetOut(ResponseModel):
    """A budget for a day, and what is used of it."""

    budget: DayBudget
    """The limits."""
    used: dict[str, float]
    """`usd`, `tokens` and `minutes` of today; `reserved_usd` and `reserved_tokens` of calls in progress."""
    resets_at: datetime
    """Midnight UTC, when what was stopped continues."""


@router.get("/budgets/{owner}")
async def get_budget(database: CurrentDatabase, caller: CurrentCaller, owner: Owner) -> DayBudgetOut:
    """Get the budget of a project or an API key, and what is used today."""
    found = await _owner(database, caller, owner)
    async with database() as tx:
        limits = await limits_of(tx, [found])
        now = (await tx.execute(select(func.clock_timestamp()))).scalar_one().astimezone(UTC)
        used = dict(await usage_of(tx, found, now.date()))
    budget = DayBudget.model_validate(limits[0][1] if limits else {})
    return DayBudgetOut(budget=budget, used=used, resets_at=midnight_after(now))


@router.put("/budgets/{owner}")
async def put_budget(
    database: CurrentDatabase, caller: CurrentCaller, owner: Owner, request: DayBudget
) -> DayBudgetOut:
    """Set the budget of a project or an API key. What it had stopped continues.

    No key can change its own budget, nor that of its project.
    """
    kind, id, _ = found = await _owner(database, caller, owner)
    if (kind == "project" and caller.project is not None) or (caller.started_by or {}).get("id") == id:
        raise Forbidden("An API key cannot change its own budget, nor that of its project.")
    async with database.begin() as tx:
        if limits := request.model_dump(exclude_none=True):
            new = insert(Setting).values(name=found.setting, value=limits)
            await tx.execute(new.on_conflict_do_update(index_elements=["name"], set_={"value": limits}))
        else:
            await tx.execute(delete(Setting).where(Setting.name == found.setting))
    return await get_budget(database, caller, owner)


async def _owner(database: Database, caller: Caller, owner: str) -> BudgetOwner:
    kind, _, id = owner.partition(":")
    async with database() as tx:
        key = await tx.get(ApiKey, id) if kind == "key" else None
    project = id if kind == "project" else key and key.project
    if not project or not caller.sees(project):
        raise NotFound(f"There is no project or API key {owner}.")
    return BudgetOwner(kind, id, key.name if key else id)
