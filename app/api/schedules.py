"""Schedules: create, list, inspect, pause, resume, run and delete them."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from sqlalchemy import Row
from ulid import ULID

from learnloop_service.app.api.dependencies import (
    NO_NUL,
    CurrentCaller,
    CurrentDatabase,
    CurrentService,
    CurrentSettings,
    Limit,
)
from learnloop_service.app.api.engine import CurrentProxy
from learnloop_service.app.api.pages import ById, Paging
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.domain.cron import next_times
from learnloop_service.app.domain.schedule_state import DueReason, DueState, Then
from learnloop_service.app.errors import Conflict
from learnloop_service.app.schedules.requests import new_schedule
from learnloop_service.app.schedules.scheduler import Scheduler, scheduler_of
from learnloop_service.app.schedules.store import DueTimeTaken, Record, ScheduleStore
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.schedules import ScheduleOut, ScheduleRequest, ScheduleRunOut
from learnloop_service.training.protocol.model_name import ModelName

router = keyed_router("schedules", prefix="/schedules")

ScheduleId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the schedule")]
NameFilter = Annotated[
    str | None, Query(max_length=100, pattern=NO_NUL, description="Only schedules of this name. Default: all")
]
TimeCursor = Annotated[datetime | None, Query(description="`next_cursor` of the previous page")]
_SHOWN_TIMES = 3


async def _store(database: CurrentDatabase) -> ScheduleStore:
    return ScheduleStore(database)


async def _scheduler(service: CurrentService, proxy: CurrentProxy) -> Scheduler:
    return scheduler_of(service, proxy.http)


Store = Annotated[ScheduleStore, Depends(_store)]
CurrentScheduler = Annotated[Scheduler, Depends(_scheduler)]


@router.post("", status_code=201)
async def create_schedule(
    service: CurrentService,
    settings: CurrentSettings,
    store: Store,
    scheduler: CurrentScheduler,
    caller: CurrentCaller,
    request: ScheduleRequest,
) -> ScheduleOut:
    """Create a schedule. The response shows the next three times at which it is due."""
    project = caller.project_of(request.project) or settings.art_project
    schedule = await new_schedule(service, request, project, str(ULID()), caller)
    return await _read_schedule(store, scheduler, (await store.create(schedule)).id)


@router.get("")
async def list_schedules(
    store: Store, scheduler: CurrentScheduler, caller: CurrentCaller, paging: ById, name: NameFilter = None
) -> Page[ScheduleOut]:
    """List schedules, newest first."""
    records = await store.listed(project=caller.project, name=name, before=paging.cursor, limit=paging.fetched)
    now = await scheduler.now()
    return paging.page(records, lambda record: _schedule(record, now), lambda record: record.schedule.id)


@router.get("/{id}")
async def get_schedule(store: Store, scheduler: CurrentScheduler, id: ScheduleId) -> ScheduleOut:
    """Get a schedule."""
    return await _read_schedule(store, scheduler, id)


@router.get("/{id}/runs")
async def list_schedule_runs(
    store: Store, id: ScheduleId, cursor: TimeCursor = None, limit: Limit = 50
) -> Page[ScheduleRunOut]:
    """List the due times of a schedule, newest first.

    Each has its run and what followed, or why there was none.
    """
    await store.get(id)
    runs = await store.runs(id, before=cursor, limit=limit + 1)
    return Paging(None, limit).page(runs, _due_time, lambda row: row.ScheduleRun.due_at.isoformat())


@router.post("/{id}/pause")
async def pause_schedule(store: Store, scheduler: CurrentScheduler, id: ScheduleId) -> ScheduleOut:
    """Pause a schedule. Its current run continues, but nothing is started after it."""
    await store.pause(id)
    return await _read_schedule(store, scheduler, id)


@router.post("/{id}/resume")
async def resume_schedule(store: Store, scheduler: CurrentScheduler, id: ScheduleId) -> ScheduleOut:
    """Resume a paused schedule. Times that were missed while it was paused are not made up."""
    await store.resume(id)
    return await _read_schedule(store, scheduler, id)


@router.post("/{id}/run", status_code=202)
async def run_schedule(store: Store, scheduler: CurrentScheduler, id: ScheduleId) -> ScheduleRunOut:
    """Make a schedule due now. The response names the run, or why none was started."""
    schedule, due_at = await store.get(id), await scheduler.now()
    if schedule.next_due_at is None:
        raise Conflict(f"Schedule {schedule.name!r} is paused; resume it first.")
    try:
        await scheduler.start(schedule, due_at)
    except DueTimeTaken:
        raise Conflict(
            f"Schedule {schedule.name!r} was started or changed at the same time; look at its runs."
        ) from None
    return _due_time(await store.due_time(id, due_at))


@router.delete("/{id}")
async def delete_schedule(store: Store, scheduler: CurrentScheduler, id: ScheduleId) -> ScheduleOut:
    """Delete a schedule, and return what it was. Its runs stay, and a running one continues without a trial."""
    gone = await _read_schedule(store, scheduler, id)
    await store.delete(id)
    return gone


async def _read_schedule(store: ScheduleStore, scheduler: Scheduler, id: str) -> ScheduleOut:
    return _schedule(await store.record(id), await scheduler.now())


def _schedule(record: Record, now: datetime) -> ScheduleOut:
    row = record.schedule
    plain = ("id", "project", "name", "cron", "run", "least_new_tasks", "window_days", "actor", "created_at")
    same: dict[str, Any] = {name: getattr(row, name) for name in plain}
    return ScheduleOut(
        **same,
        promoted_name=str(ModelName(row.project, row.promoted_name)),
        then=Then(row.then),
        paused=row.next_due_at is None,
        next_times=[] if row.next_due_at is None else next_times(row.cron, now, _SHOWN_TIMES),
        trials=record.trials,
        expected_wrong_promotions=record.expected_wrong,
        last=None if record.last is None else _due_time(record.last),
    )


def _due_time(joined: Row[Any]) -> ScheduleRunOut:
    row = joined.ScheduleRun
    plain = ("due_at", "detail", "run_id", "started_from", "tasks", "users", "evaluation_id", "release_id")
    return ScheduleRunOut(
        **{name: getattr(row, name) for name in plain},
        state=DueState(row.state),
        reason=None if row.reason is None else DueReason(row.reason),
        run_status=joined.run_status,
        evaluation_status=joined.evaluation_status,
        decision=joined.decision,
    )
