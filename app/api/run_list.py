"""The list of runs."""

import base64
import json
import re
from typing import Annotated, Any

from fastapi import Query
from pydantic import AwareDatetime

from learnloop_service.app.api import presentation
from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentQueries, CurrentService, Limit
from learnloop_service.app.api.pages import Paging, StartedBy
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.json_text import flaw
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.runs.run_list import Listed, Order, PageEnd, RunFilters, RunList, SortBy
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.runs import RunListed

router = keyed_router("runs")

_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=100,
        pattern=NO_NUL,
        description="Only runs with this text in their id, name, model, environment, judge or tags, in any case. "
        "Default: all",
    ),
]


@router.get("/runs")
async def list_runs(
    service: CurrentService,
    queries: CurrentQueries,
    caller: CurrentCaller,
    status: Annotated[RunStatus | None, Query(description="Only runs with this status. Default: all")] = None,
    search: Search = None,
    tag: Annotated[
        str | None,
        Query(min_length=1, max_length=40, pattern=NO_NUL, description="Only runs with this tag. Default: all"),
    ] = None,
    starred: Annotated[bool | None, Query(description="Only runs that are starred, or are not. Default: all")] = None,
    settings_hash: Annotated[
        str | None, Query(pattern="^[0-9a-f]{32}$", description="Only runs with these settings. Default: all")
    ] = None,
    since: Annotated[
        AwareDatetime | None, Query(description="Only runs that were requested at this time or later. Default: all")
    ] = None,
    started_by: StartedBy = None,
    sort: Annotated[
        SortBy, Query(description="What to sort by. `gain` is the latest held-out success minus the first one")
    ] = SortBy.CREATED,
    ascending: Annotated[bool, Query(description="Lowest, oldest or A first; runs without a value come last")] = False,
    fold: Annotated[
        bool, Query(description="List runs that differ only in their seed once: the newest one, with figures of all")
    ] = False,
    curve: Annotated[
        int | None, Query(ge=2, le=100, description="Show a learning curve of at most this many points. Default: none")
    ] = None,
    settings: Annotated[bool, Query(description="Show the settings of each run")] = False,
    cursor: Annotated[
        str | None, Query(pattern=r"^[A-Za-z0-9_=-]{1,600}$", description="`next_cursor` of the previous page")
    ] = None,
    limit: Limit = 50,
) -> Page[RunListed]:
    """List runs, newest first or sorted by their figures."""
    filters = RunFilters(caller.project, status, search, tag, starred, settings_hash, since, started_by)
    order = Order(sort, ascending)
    after = None if cursor is None else _page_end(cursor, order)
    rows = await RunList(service.database).page(filters, order, after, limit + 1, fold=fold)
    runs = [listed.run for listed in rows[:limit]]
    curves = None if curve is None else await queries.curves([run.id for run in runs], curve)
    verdicts = await queries.verdicts(runs)

    def show(listed: Listed) -> RunListed:
        points = None if curves is None else curves.get(listed.run.id, [])
        return presentation.run_listed(listed, verdicts[listed.run.id], points, with_settings=settings)

    return Paging(cursor, limit).page(rows, show, lambda listed: _cursor(listed, order))


def _cursor(listed: Listed, order: Order) -> str:
    """Return the cursor of the page after this run. It names the order, because no other list continues there."""
    if order.by is SortBy.CREATED:
        return listed.run.id
    parts = [order.by, order.is_ascending, listed.value, listed.run.id]
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def _page_end(cursor: str, order: Order) -> PageEnd:
    """Return where the page before ended. Raises InvalidRequest if the cursor belongs to another order."""
    if order.by is SortBy.CREATED:
        belongs = _ID.fullmatch(cursor) is not None
        page_end = PageEnd(cursor, cursor)
    else:
        by, is_ascending, *rest = _read(cursor)
        page_end = PageEnd(*rest)
        belongs = (by, is_ascending) == (order.by, order.is_ascending)
        belongs = belongs and isinstance(page_end.value, str if order.is_by_text else float)
    if not belongs:
        message = "This cursor does not belong to this list: pass it with the `sort` and `ascending` that it came with."
        raise InvalidRequest(("query", "cursor"), message)
    return page_end


def _read(cursor: str) -> tuple[Any, Any, Any, str]:
    """Return what a cursor says, or only nulls if it is none."""
    try:
        by, is_ascending, value, run_id = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError):
        return None, None, None, ""
    is_storable = isinstance(run_id, str) and flaw([value, run_id]) is None
    return (by, is_ascending, value, run_id) if is_storable else (None, None, None, "")
