"""Drives an evaluation under a lease: opens what its kind needs, and starts that kind's work.

A rollout is saved when it ends, and verdicts that were given together are saved in one transaction, so a worker that
takes over does only what is missing.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial

import structlog

from learnloop_service.app.aio.event_loops import run_in_thread, run_on_loop
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.backends import Connect
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.datasets.documents import resolve_references
from learnloop_service.app.db.clock import database_time
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import (
    Comparison,
    Contestant,
    GateEvaluation,
    RejudgingEvaluation,
    TrialEvaluation,
    WhatIfEvaluation,
    parse_evaluation,
)
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.evaluations.rejudgings import RejudgingStore
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.app.runs.configuration import make_environment, make_judge
from learnloop_service.app.runs.day_spending import spending
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.resume_point import begin_with
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.driven import Patience
from learnloop_service.app.worker.evaluations.budget import EvaluationSpending, meter_of, prices_of, saved_usage
from learnloop_service.app.worker.evaluations.rejudging import Rejudging
from learnloop_service.app.worker.evaluations.rollouts import (
    ComparisonWork,
    ForkedRollout,
    GateWork,
    TrialWork,
    WhatIfWork,
)
from learnloop_service.app.worker.evaluations.state import DriveState, OpenedEvaluation
from learnloop_service.app.worker.judge_services import judge_services
from learnloop_service.app.worker.own_agents import OwnAgents
from learnloop_service.app.worker.rollout_sessions import LeasedSessions
from learnloop_service.environment.base import Json
from learnloop_service.environment.first_line import first_line
from learnloop_service.judges.base import Judge
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import Endpoint, ModelSpec
from learnloop_service.training.backends.registry import engine_backend
from learnloop_service.training.budget import Usage
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.chat import Chat, open_chat
from learnloop_service.training.rollout.prompted import PromptedChat
from learnloop_service.training.rollout.rollout import Player
from learnloop_service.training.types import IterationProgress

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EvaluationDriver:
    """Drives evaluations for a worker."""

    database: Database
    settings: Settings
    connect: Connect
    engine: EngineHandle

    async def drive(
        self,
        job: EvaluationJob,
        lease: Lease[EvaluationJob],
        note: Callable[[IterationProgress], None],
        waits: Callable[[str], None],
    ) -> dict[str, Json]:
        """Drive the evaluation to its end on a separate thread, and return the report.

        `note` and `waits` (with what the evaluation waits for) are called on that thread. Raises LeaseLost,
        RunBudgetReached, and whatever else ends it.
        """
        request, store = parse_evaluation(job.request), EvaluationStore(self.database)
        prices = prices_of(request, ListedModels(self.settings))
        rows = await retry_while_database_is_down(lambda: store.rows(job.id))
        meter = meter_of(job, request, rows, prices)
        main_loop, patience = asyncio.get_running_loop(), Patience(waits)
        state = DriveState(job, request, store, lease, main_loop, meter, prices, note, patience, saved_count=len(rows))
        try:
            async with spending(self.database, job, lease, meter):
                return await run_in_thread(lambda: self._retrying(state), name=f"evaluation-{job.id}")
        except LeaseLost:
            raise
        except BaseException:
            await self._settle(state)
            raise

    async def _settle(self, state: DriveState) -> None:
        """Save usage that led to nothing, because it counts toward the budget. If that fails, nothing else is lost."""
        if not state.meter.limited:
            return
        store, id = state.store, state.job.id
        try:
            saved = saved_usage(await store.get(id), await store.rows(id), state.prices)
            spent = state.meter.used
            lost = Usage(
                max(0, spent.prompt_tokens - saved.prompt_tokens),
                max(0, spent.completion_tokens - saved.completion_tokens),
                max(0.0, (spent.usd or 0.0) - (saved.usd or 0.0)),
            )
            await store.keep_lost(state.lease, asdict(lost))
        except DATABASE_DOWN as error:
            log.warning("usage of an evaluation not saved", evaluation_id=id, error=first_line(error))

    async def _retrying(self, state: DriveState) -> dict[str, Json]:
        await asyncio.to_thread(import_art)
        structlog.contextvars.bind_contextvars(evaluation_id=state.job.id)
        state.saved()
        return await state.patience.retrying(lambda: self._evaluate(state))

    async def _evaluate(self, state: DriveState) -> dict[str, Json]:
        request, database, data_dir = state.request, self.database, self.settings.data_dir
        named, project = request.environment, state.job.project
        choice = await state.query(lambda: resolve_references(database, data_dir, named, project))
        clock = await state.query(lambda: database_time(database))
        async with AsyncExitStack() as stack:
            access = EnvironmentAccess(self.settings)
            environment = stack.enter_context(closing(make_environment(choice, data_dir, access)))
            prompts = [
                await state.query(partial(read_stored, database, project, contestant.prompt))
                for contestant in request.models
            ]
            budget = EvaluationSpending(state.meter, request, environment, state.prices, prompts)
            opened = OpenedEvaluation(
                state, environment, budget, asyncio.Semaphore(request.concurrency), clock, prompts
            )
            return await (await self._work(opened, choice, stack)).report()

    async def _work(
        self, opened: OpenedEvaluation, environment: Choice, stack: AsyncExitStack
    ) -> ComparisonWork | Rejudging:
        """Return the work of the evaluation's kind."""
        query, database = opened.state.query, self.database
        match opened.state.request:
            case RejudgingEvaluation(rejudge=rejudge) as request:
                run = await query(lambda: RunStore(database).get(rejudge.run_id))
                services = judge_services(self.settings, database, opened.state.main_loop, run, opened.environment)
                return Rejudging(request, opened, RejudgingStore(database), run.stored_request.config, services)
            case WhatIfEvaluation(what_if=what_if) as request:
                forked = await query(lambda: ForkedRollout.read(database, what_if))
                begin_with(opened.environment, forked.state)
                return WhatIfWork(request, opened, *await self._models(opened, environment, stack), forked)
            case TrialEvaluation() as request:
                return TrialWork(request, opened, *await self._models(opened, environment, stack))
            case GateEvaluation() as request:
                return GateWork(request, opened, *await self._models(opened, environment, stack))
            case Comparison() as request:
                return ComparisonWork(request, opened, *await self._models(opened, environment, stack))

    async def _models(
        self, opened: OpenedEvaluation, environment: Choice, stack: AsyncExitStack
    ) -> tuple[Judge, list[Chat], list[Player | None], Sequence[Prompt | None]]:
        """Return the judge, and for each model its chat, the player that replaces the built-in loop, if any, and its
        prompt."""
        state, request = opened.state, opened.state.request
        services = judge_services(self.settings, self.database, state.main_loop, None, opened.environment)
        judge = make_judge(request.judge, services)
        chats = [await self._chat(contestant, state, stack) for contestant in request.models]
        project, player = state.job.project, OwnAgents(self.database, self.settings).player
        sessions = LeasedSessions(
            self.database, state.lease, state.main_loop, project=project, backend=engine_backend()
        )
        now = opened.clock.now
        players = [await player(environment, request, sessions, now, contestant) for contestant in request.models]
        return judge, chats, players, opened.prompts

    async def _chat(self, contestant: Contestant, state: DriveState, stack: AsyncExitStack) -> Chat:
        concurrency = state.request.concurrency
        if contestant.kind == "prompted":
            return PromptedChat(ListedModels(self.settings).model(contestant.model), concurrency=concurrency)
        endpoint = await self._endpoint(contestant, state.main_loop)
        return await stack.enter_async_context(open_chat(endpoint, concurrency))

    async def _endpoint(self, contestant: Contestant, main_loop: asyncio.AbstractEventLoop) -> Endpoint:
        if contestant.spec is None:
            address = await run_on_loop(main_loop, self.engine.address())
            return Endpoint(f"{address.url}/v1", address.key, contestant.model, remembers=True, tells_token_ids=True)
        backend = await self.connect(contestant.backend or engine_backend())
        try:
            spec = contestant.spec
            policy = await backend.register(ModelSpec(spec["project"], spec["name"], spec["base_model"]))
            return policy.endpoint(contestant.step)
        finally:
            await backend.close()
