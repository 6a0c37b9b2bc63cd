"""Starts the runs of schedules when they are due, and what follows when they are completed.

Every service looks, so nothing waits for a particular process. A due time is added in the transaction that creates its
run, and what follows is saved in the transaction that starts it: a process that dies before the commit has done
nothing, and the next look does it; after the commit everything is done.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.agent_sessions.consented import (
    Pool,
    SessionScenarios,
    consented_pool,
    draw_scenarios,
    stored_scenarios,
)
from learnloop_service.app.agent_sessions.served import TooFewAnswers
from learnloop_service.app.aio.periodic import every
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Checkpoint, Promotion, Run, Schedule, ScheduleRun
from learnloop_service.app.domain.cron import latest_time
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.domain.schedule_state import DueReason, DueState, Then
from learnloop_service.app.domain.stored_request import StoredRequest
from learnloop_service.app.errors import DATABASE_DOWN, ServiceError, Unavailable
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.challenge import Challenge, challenge
from learnloop_service.app.operations.start.evaluation import EvaluationStarter, StartedEvaluation
from learnloop_service.app.operations.start.release import ReleaseStarter, StartedRelease
from learnloop_service.app.operations.start.run import ForkOrigin, Started, start_run
from learnloop_service.app.operations.start.served import answer_source
from learnloop_service.app.schedules.requests import checkpoint_name, filter_of, request_for
from learnloop_service.app.schedules.store import DueTimeTaken, ScheduleStore, follow, take
from learnloop_service.app.schemas.releases import NewReleaseRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.sequential import Rule

LOOK_EVERY_S = 15.0
LOOK_S = 10.0
"""Time after which a look begins no more work; starting runs and starting what follows them each have it once."""
_MOST_SCENARIOS = 1_000
_REFUSED = (ServiceError, ValueError)
"""Errors that a repetition would raise again. A ValueError is a stored request that this version no longer accepts."""

log = structlog.get_logger(__name__)


class _Skipped(Exception):
    """No run is started."""

    def __init__(self, reason: DueReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Deals with the due times of all schedules."""

    service: HandlerResources
    evaluations: EvaluationStarter
    engine: EngineClient

    @property
    def store(self) -> ScheduleStore:
        """The schedules."""
        return ScheduleStore(self.service.database)

    async def look(self) -> None:
        """Deal with what is due now: at least one schedule of each project. What takes too long stays due for the next
        look, and so does what cannot be done because a service that it needs is unavailable."""
        has_turn = _turn()
        for schedule in await self.store.due():
            if not has_turn(schedule):
                break
            await _attempt(schedule, self.start(schedule, latest_time(schedule.cron, await self.now())))
        has_turn = _turn()
        for row, schedule, run in await self.store.ended():
            if not has_turn(schedule):
                break
            await _attempt(schedule, self._follow(row, schedule, run))

    async def start(self, schedule: Schedule, due_at: datetime) -> None:
        """Start the run of a due time, or save why not. Raises DueTimeTaken or Unavailable."""
        try:
            await self._require_free(schedule)
            run = LearnLoopRequest.model_validate(schedule.run)
            await self._start(schedule, due_at, None if answer_source(run) else await self._draw(schedule, due_at, run))
        except TooFewAnswers as error:
            await self.store.skip(schedule, due_at, error.reason, str(error))
        except _Skipped as skipped:
            await self.store.skip(schedule, due_at, skipped.reason, str(skipped))
            log.info("run of a schedule skipped", schedule=schedule.id, reason=skipped.reason)
        except Unavailable:
            raise
        except _REFUSED as error:
            await self.store.skip(schedule, due_at, DueReason.REFUSED, str(error))
            log.warning("run of a schedule refused", schedule=schedule.id, error=str(error))

    async def now(self) -> datetime:
        """Return the database's time in UTC."""
        async with self.service.database() as tx:
            now: datetime = (await tx.execute(select(func.clock_timestamp()))).scalar_one()
        return now.astimezone(UTC)

    async def _require_free(self, schedule: Schedule) -> None:
        if (run_id := await self.store.live_run(schedule.id)) is not None:
            raise _Skipped(DueReason.LAST_RUN_LIVE, f"The last run of the schedule, {run_id}, has not ended.")
        name = f"{schedule.project}/{schedule.promoted_name}"
        if (release_id := await self.store.live_release(schedule.project, schedule.promoted_name)) is not None:
            raise _Skipped(DueReason.RELEASE_LIVE, f"Release {release_id} of {name} has not ended.")

    async def _draw(self, schedule: Schedule, due_at: datetime, run: LearnLoopRequest) -> SessionScenarios:
        which, last = filter_of(run), await self.store.last_draw(schedule.id)
        days = schedule.window_days
        since = last if days is None else due_at - timedelta(days=days)
        pool = await consented_pool(self.service.database, schedule.project, which, since, due_at, last)
        _require_enough(schedule, pool)
        drawn = await draw_scenarios(
            self.service.database, pool, which, f"{schedule.id}:{run.seed}:{due_at.isoformat()}"
        )
        if missing := {"train", "validation", "test"} - {row["split"] for row in drawn.rows}:
            raise _Skipped(
                DueReason.TOO_FEW_USERS,
                f"Of {counted(len(drawn.rows), 'drawn task')} by {counted(len(set(drawn.users.values())), 'user')} "
                f"none is in the split {' or '.join(sorted(missing))}: all tasks of a user are in one split.",
            )
        return drawn

    async def _start(self, schedule: Schedule, due_at: datetime, drawn: SessionScenarios | None) -> None:
        """Start the run on the drawn tasks, or on served answers."""
        champion = await Promotions(self.service.database).current(schedule.project, schedule.promoted_name)
        scenarios = drawn and await stored_scenarios(self.service.database, schedule.project, drawn)
        request = request_for(schedule, due_at, champion, scenarios)
        run_id = str(ULID())
        row = ScheduleRun(
            schedule_id=schedule.id,
            due_at=due_at,
            state=DueState.RUNNING,
            run_id=run_id,
            started_from=None if champion is None else checkpoint_name(champion),
        )

        async def save(tx: AsyncSession, started: Started) -> None:
            learned_from = drawn or started.answers
            assert learned_from is not None
            row.tasks, row.users = len(learned_from.rows), len(set(learned_from.users.values()))
            await take(tx, schedule, row)

        parent = None if champion is None else await self._parent(champion)
        await start_run(self.service, run_id, request, _caller(schedule), save, parent)
        log.info("run of a schedule started", schedule=schedule.id, run_id=run_id)

    async def _parent(self, champion: Promotion) -> ForkOrigin | None:
        """Return the run that made the champion; None if no run did, or if it was deleted."""
        query = (
            select(Checkpoint.run_id)
            .join(Run, Run.id == Checkpoint.run_id)
            .where(Run.model_project == champion.project, Run.model_name == champion.model_name)
            .where(Checkpoint.step == champion.step)
            .order_by(Run.id.desc())
            .limit(1)
        )
        async with self.service.database() as tx:
            run_id = (await tx.execute(query)).scalar_one_or_none()
        return None if run_id is None else ForkOrigin(run_id, champion.step, learned=None)

    async def _follow(self, row: ScheduleRun, schedule: Schedule, run: Run | None) -> None:
        """Start what follows an ended run, or save why nothing does. Raises DueTimeTaken or Unavailable."""
        if run is None or run.status != RunStatus.COMPLETED:
            detail = (
                "The run was deleted." if run is None else f"The run is {run.status}: {run.error or 'by its owner'}."
            )
            await self.store.finish(row, DueReason.RUN_ENDED, detail)
        elif schedule.then == Then.NOTHING:
            await self.store.finish(row)
        elif run.stored_request.served is not None and await self._is_overtaken(row, schedule):
            name = f"{schedule.project}/{schedule.promoted_name}"
            detail = f"{name} no longer has {row.started_from}, whose answers the run learned from."
            await self.store.finish(row, DueReason.OVERTAKEN, detail)
        elif (step := await self._learned_step(run)) is None:
            await self.store.finish(
                row, DueReason.NOT_LEARNED, "The best checkpoint of the run is the one that it started from."
            )
        else:
            try:
                await (self._release if schedule.then == Then.RELEASE else self._try)(row, schedule, run, step)
            except Unavailable:
                raise
            except _REFUSED as error:
                await self.store.finish(row, DueReason.REFUSED, str(error))

    async def _is_overtaken(self, row: ScheduleRun, schedule: Schedule) -> bool:
        champion = await Promotions(self.service.database).current(schedule.project, schedule.promoted_name)
        return champion is None or checkpoint_name(champion) != row.started_from

    async def _learned_step(self, run: Run) -> int | None:
        """Return the step of the run's best checkpoint; None if it is the one that the run started from."""
        if run.best_step is None:
            return None
        async with self.service.database() as tx:
            checkpoint = await tx.get(Checkpoint, (run.id, run.best_step))
        return run.best_step if checkpoint is not None and checkpoint.iteration > 0 else None

    async def _try(self, row: ScheduleRun, schedule: Schedule, run: Run, step: int) -> None:
        """Start the trial of the checkpoint against the champion."""
        service, rule, name = self.service, Rule(), schedule.promoted_name

        async def save(tx: AsyncSession, started: StartedEvaluation) -> None:
            await follow(tx, row, evaluation_id=started.job.id, trial_alpha=rule.alpha)

        checkpoints = Checkpoints(
            service.database, self.engine, service.connect, ModelName(run.model_project, run.model_name), run.backend
        )
        prompt = await checkpoints.usual_prompt(name, step)
        terms = Challenge(step, prompt, name, name, rule, _MOST_SCENARIOS, None, None, None)
        await challenge(self.evaluations, checkpoints, terms, _caller(schedule), save)
        log.info("trial of a schedule started", schedule=schedule.id, run_id=run.id)

    async def _release(self, row: ScheduleRun, schedule: Schedule, run: Run, step: int) -> None:
        """Start a release of the checkpoint. What was learned from served answers is decided by their outcome."""

        async def save(tx: AsyncSession, started: StartedRelease) -> None:
            await follow(tx, row, release_id=started.row.id)

        starter = ReleaseStarter(self.engine, self.evaluations)
        request = NewReleaseRequest.model_validate(
            {"model": f"{run.model_project}/{run.model_name}", "step": step} | _outcome_decides(run.stored_request)
        )
        await starter.start(schedule.project, schedule.promoted_name, request, _caller(schedule), save)
        log.info("release of a schedule started", schedule=schedule.id, run_id=run.id)


def _outcome_decides(request: StoredRequest) -> dict[str, Json]:
    """Return the rules of a release of what was learned from served answers: their outcome decides it, and a trial is
    possible only if the run attempts held-out tasks."""
    if request.served is None:
        return {}
    source = request.served["source"]
    rules = {name: source[name] for name in ("outcome", "window_hours") if name in source}
    return {"goal": "better", "skip_trial": not request.config.evaluation.scenarios, **rules}


def scheduler_of(service: HandlerResources, http: httpx.AsyncClient) -> Scheduler:
    """Return the scheduler of a service. `http` talks to its engine."""
    models = ModelResolver(service.database, service.engine, service.connect, base_models(service.settings))
    evaluations = EvaluationStarter(service, service.store, models, service.runner.wake)
    return Scheduler(service, evaluations, EngineClient(service.engine, http))


@asynccontextmanager
async def looking(scheduler: Scheduler) -> AsyncIterator[None]:
    """Deal with due times periodically while this is open."""
    async with every(LOOK_EVERY_S, scheduler.look, "schedules"):
        yield


def _turn() -> Callable[[Schedule], bool]:
    """Return a function that says whether a look has time for a schedule. It always has for a project's first one."""
    until, served = time.monotonic() + LOOK_S, set[str]()

    def has_turn(schedule: Schedule) -> bool:
        first = schedule.project not in served
        served.add(schedule.project)
        return first or time.monotonic() < until

    return has_turn


async def _attempt(schedule: Schedule, work: Awaitable[None]) -> None:
    """Do the work for one schedule. Errors are logged, so that one schedule does not hold up the others."""
    try:
        await work
    except DueTimeTaken:
        log.debug("another process was faster", schedule=schedule.id)
    except Unavailable as error:
        log.warning("schedule has to wait", schedule=schedule.id, error=str(error))
    except DATABASE_DOWN:
        raise
    except Exception:
        log.exception("schedule failed", schedule=schedule.id)


def _require_enough(schedule: Schedule, pool: Pool) -> None:
    if pool.new < schedule.least_new_tasks:
        raise _Skipped(
            DueReason.TOO_FEW_TASKS,
            f"New since the last run's draw: {counted(pool.new, 'consented task')}, and least_new_tasks is "
            f"{schedule.least_new_tasks}.",
        )


def _caller(schedule: Schedule) -> Caller:
    return Caller.on_order(f"schedule:{schedule.id}", schedule.project, schedule.started_by)
