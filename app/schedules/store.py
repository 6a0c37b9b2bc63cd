"""Schedules in the database: all SQL about them and their due times. All times are the database's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, exists, func, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import EvaluationJob, Release, Run, Schedule, ScheduleRun
from learnloop_service.app.domain.cron import next_times
from learnloop_service.app.domain.run_state import LIVE, TERMINAL
from learnloop_service.app.domain.schedule_state import DueReason, DueState
from learnloop_service.app.errors import Conflict, existing

_SETTLE = timedelta(seconds=5)
"""Age of a due time when it is noticed. By then everything that ended before it has been committed."""
_DECISION = EvaluationJob.report["trial"]["decision"].astext.label("decision")
MAX_SCHEDULES = 100
"""Maximum number of schedules of a project."""
_CREATING = 0x7363686564756C65
"""Key of the advisory lock that serializes creations, so that the maximum holds."""
_LOOKED_AT = 200
"""Maximum number of schedules that are looked at before the next look, which gives every project its turn again."""
_DUE_TIME_COLUMNS = (
    ScheduleRun,
    Run.status.label("run_status"),
    EvaluationJob.status.label("evaluation_status"),
    _DECISION,
)


class DueTimeTaken(Exception):
    """Another process has dealt with the due time, or the schedule was paused or deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Record:
    """A schedule, its number of trials, the sum of their error rates, and its latest due time.

    A due time has the columns `_DUE_TIME_COLUMNS`.
    """

    schedule: Schedule
    trials: int
    expected_wrong: float
    last: Row[Any] | None


class ScheduleStore:
    """The schedules in the database. Methods that take an id raise NotFound if there is no such schedule."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, schedule: Schedule) -> Schedule:
        """Save a schedule, whose first due time is the next one. Raises Conflict if its name is taken, or if the
        project has as many as it can have."""
        try:
            async with self._database.begin() as tx:
                await tx.execute(select(func.pg_advisory_xact_lock(_CREATING)))
                of_project = select(func.count()).where(Schedule.project == schedule.project)
                if (await tx.execute(of_project)).scalar_one() >= MAX_SCHEDULES:
                    raise Conflict(f"Project {schedule.project} has {MAX_SCHEDULES} schedules; delete one first.")
                schedule.next_due_at = await _next(tx, schedule.cron)
                tx.add(schedule)
                await tx.flush()
                await tx.refresh(schedule)
                return schedule
        except IntegrityError:
            raise Conflict(
                f"Project {schedule.project} has a schedule {schedule.name!r}; delete it, or choose another name."
            ) from None

    async def get(self, id: str) -> Schedule:
        """Return a schedule."""
        async with self._database() as tx:
            return existing(await tx.get(Schedule, id), "schedule", id)

    async def record(self, id: str) -> Record:
        """Return a schedule with its trials and its latest due time."""
        return (await self._records([await self.get(id)]))[0]

    async def listed(
        self, *, project: str | None, name: str | None, before: str | None, limit: int
    ) -> Sequence[Record]:
        """Return the schedules of a project or of all, newest first; `before` is the id of a schedule."""
        only = (Schedule.project, project), (Schedule.name, name)
        query = newest_first(select(Schedule), Schedule.id, before, limit, *only)
        async with self._database() as tx:
            schedules = (await tx.execute(query)).scalars().all()
        return await self._records(schedules)

    async def runs(self, id: str, *, before: datetime | None, limit: int) -> Sequence[Row[Any]]:
        """Return the due times of a schedule, newest first, with the columns `_DUE_TIME_COLUMNS`."""
        query = newest_first(_due_times().where(ScheduleRun.schedule_id == id), ScheduleRun.due_at, before, limit)
        async with self._database() as tx:
            return (await tx.execute(query)).all()

    async def due_time(self, id: str, due_at: datetime) -> Row[Any]:
        """Return one due time with the columns `_DUE_TIME_COLUMNS`."""
        query = _due_times().where(ScheduleRun.schedule_id == id, ScheduleRun.due_at == due_at)
        async with self._database() as tx:
            return (await tx.execute(query)).one()

    async def pause(self, id: str) -> Schedule:
        """Pause a schedule. Repeating it changes nothing."""
        async with self._database.begin() as tx:
            schedule = existing(await tx.get(Schedule, id, with_for_update=True), "schedule", id)
            schedule.next_due_at = None
            return schedule

    async def resume(self, id: str) -> Schedule:
        """Resume a paused schedule with the next due time: what was missed is not made up."""
        async with self._database.begin() as tx:
            schedule = existing(await tx.get(Schedule, id, with_for_update=True), "schedule", id)
            if schedule.next_due_at is None:
                schedule.next_due_at = await _next(tx, schedule.cron)
            return schedule

    async def delete(self, id: str) -> None:
        """Delete a schedule with its due times. Its runs stay."""
        async with self._database.begin() as tx:
            await tx.delete(existing(await tx.get(Schedule, id, with_for_update=True), "schedule", id))

    async def due(self) -> Sequence[Schedule]:
        """Return schedules with a due time to deal with, with projects in turn."""
        due = Schedule.next_due_at <= func.now() - _SETTLE
        query = select(Schedule).where(due).order_by(*_in_turn(Schedule.next_due_at)).limit(_LOOKED_AT)
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def ended(self) -> Sequence[Row[ScheduleRun, Schedule, Run | None]]:
        """Return the due times whose run has ended or was deleted, and that something can follow now."""
        query = (
            select(ScheduleRun, Schedule, Run)
            .join(Schedule, Schedule.id == ScheduleRun.schedule_id)
            .outerjoin(Run, Run.id == ScheduleRun.run_id)
            .where(ScheduleRun.state == DueState.RUNNING, Schedule.next_due_at.is_not(None))
            .where(or_(Run.id.is_(None), Run.status.in_(TERMINAL)))
            .order_by(*_in_turn(ScheduleRun.due_at))
            .limit(_LOOKED_AT)
        )
        async with self._database() as tx:
            return (await tx.execute(query)).all()

    async def last_draw(self, id: str) -> datetime | None:
        """Return the due time of the last run that was started, up to which tasks were drawn; None if there is none."""
        started = and_(ScheduleRun.schedule_id == id, ScheduleRun.state != DueState.SKIPPED)
        async with self._database() as tx:
            return (await tx.execute(select(func.max(ScheduleRun.due_at)).where(started))).scalar_one()

    async def live_run(self, id: str) -> str | None:
        """Return the schedule's run that has not ended, if any."""
        async with self._database() as tx:
            return await _live_run(tx, id)

    async def live_release(self, project: str, name: str) -> str | None:
        """Return the release of the promoted name that has not ended, if any."""
        of_name = and_(Release.project == project, Release.name == name, Release.needs_arms())
        async with self._database() as tx:
            return (await tx.execute(select(Release.id).where(of_name))).scalar_one_or_none()

    async def skip(self, schedule: Schedule, due_at: datetime, reason: DueReason, detail: str) -> None:
        """Save why no run was started. Raises DueTimeTaken."""
        row = ScheduleRun(schedule_id=schedule.id, due_at=due_at, state=DueState.SKIPPED, reason=reason, detail=detail)
        async with self._database.begin() as tx:
            await take(tx, schedule, row)

    async def finish(self, row: ScheduleRun, reason: DueReason | None = None, detail: str | None = None) -> None:
        """Save that nothing follows the run any more. Does nothing if another process was faster."""
        async with self._database.begin() as tx:
            await tx.execute(_still_running(row).values(state=DueState.DONE, reason=reason, detail=detail))

    async def _records(self, schedules: Sequence[Schedule]) -> list[Record]:
        ids = [schedule.id for schedule in schedules]
        of_schedules, tried = ScheduleRun.schedule_id.in_(ids), func.count(ScheduleRun.trial_alpha)
        sums = select(ScheduleRun.schedule_id, tried, func.sum(ScheduleRun.trial_alpha)).where(of_schedules)
        sums = sums.group_by(ScheduleRun.schedule_id)
        key = ScheduleRun.schedule_id
        newest = select(key, func.max(ScheduleRun.due_at)).where(of_schedules).group_by(key)
        last = _due_times().where(tuple_(key, ScheduleRun.due_at).in_(newest))
        async with self._database() as tx:
            counted = {id: (trials, expected or 0.0) for id, trials, expected in await tx.execute(sums)}
            latest = {row.ScheduleRun.schedule_id: row for row in await tx.execute(last)}
        return [
            Record(schedule, *counted.get(schedule.id, (0, 0.0)), latest.get(schedule.id)) for schedule in schedules
        ]


async def take(tx: AsyncSession, noticed: Schedule, row: ScheduleRun) -> None:
    """Add the due time, in the transaction that creates its run if it has one. Raises DueTimeTaken.

    `noticed` is the schedule as it was when the due time was noticed. The schedule's row is locked, so only one of
    several processes that noticed it adds it, and no run is started while another one is live.
    """
    schedule = await tx.get(Schedule, noticed.id, with_for_update=True, populate_existing=True)
    if schedule is None or schedule.next_due_at != noticed.next_due_at or noticed.next_due_at is None:
        raise DueTimeTaken
    if row.state == DueState.RUNNING and await _live_run(tx, noticed.id) is not None:
        raise DueTimeTaken
    tx.add(row)
    if row.due_at >= noticed.next_due_at:
        schedule.next_due_at = await _next(tx, schedule.cron)
    await tx.flush()


async def follow(tx: AsyncSession, row: ScheduleRun, **values: Any) -> None:
    """Save what follows the run, in the transaction that starts it. Raises DueTimeTaken."""
    query = _still_running(row).values(state=DueState.DONE, **values).returning(ScheduleRun.due_at)
    if (await tx.execute(query)).scalar_one_or_none() is None:
        raise DueTimeTaken


def _still_running(row: ScheduleRun) -> Any:
    same = and_(ScheduleRun.schedule_id == row.schedule_id, ScheduleRun.due_at == row.due_at)
    return (
        update(ScheduleRun)
        .where(same, ScheduleRun.state == DueState.RUNNING)
        .execution_options(synchronize_session=False)
    )


def _due_times() -> Any:
    return (
        select(*_DUE_TIME_COLUMNS)
        .outerjoin(Run, Run.id == ScheduleRun.run_id)
        .outerjoin(EvaluationJob, EvaluationJob.id == ScheduleRun.evaluation_id)
    )


def _in_turn(due_at: Any) -> tuple[Any, Any]:
    """Return the order in which every project's first due time comes before any project's second one."""
    return func.row_number().over(partition_by=Schedule.project, order_by=due_at), due_at


async def _live_run(tx: AsyncSession, id: str) -> str | None:
    of_schedule = exists().where(ScheduleRun.schedule_id == id, ScheduleRun.run_id == Run.id)
    return (await tx.execute(select(Run.id).where(of_schedule, Run.status.in_(LIVE)).limit(1))).scalar_one_or_none()


async def _next(tx: AsyncSession, cron: str) -> datetime:
    now = (await tx.execute(select(func.clock_timestamp()))).scalar_one()
    return next_times(cron, now.astimezone(UTC), 1)[0]
