"""Drives an evaluation under a lease: makes the missing rollouts, has them judged, and saves the results.

A rollout is saved when it ends, and the verdicts on a scenario's rollouts are saved in one transaction, so a worker
that takes over does only what is missing. All models attempt a scenario at about the same time, and its rollouts are
judged together, so that a judge can compare them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from ulid import ULID

from app.aio.event_loops import run_in_thread, run_on_loop, shielded
from app.aio.retry import retry_while_database_is_down
from app.backends import Connect
from app.claims.lease import Lease, LeaseLost
from app.db.clock import DatabaseTime, database_time
from app.db.database import Database
from app.db.tables import EvaluationJob, Run, Trajectory
from app.domain.stored_evaluation import Contestant, Rejudge, Slot, StoredEvaluation, WhatIf
from app.domain.stored_request import Choice
from app.errors import DATABASE_DOWN
from app.evaluations.rejudgings import RejudgingStore
from app.evaluations.report import differences, report_of, why_no_figures
from app.evaluations.store import EvaluationStore
from app.evaluations.what_if_report import values_of, what_if_report
from app.listed_models import ListedModels
from app.processes.engine import Engine
from app.runs.budget import Meter
from app.runs.configuration import make_environment, make_judge, make_player
from app.runs.documents import resolve_references
from app.runs.environment_access import EnvironmentAccess
from app.runs.recorded_rollouts import recorded_rollout
from app.runs.resume_point import begin_with, state_after
from app.runs.stored_rollouts import stored_rollout
from app.settings import Settings
from app.worker.driven import Patience, query
from app.worker.evaluations.budget import EvaluationBudget, meter_of, prices_of, saved_usage
from app.worker.evaluations.rejudging import Rejudging
from app.worker.judge_services import judge_services
from app.worker.measures import count_judge_calls, count_rollouts
from app.worker.own_agents import OwnAgents
from app.worker.save_iteration import rollout_row, verdict_row
from environment.base import Environment, Json, Scenario
from environment.first_line import first_line
from judges.base import Judge, Judgement, JudgeServices
from judges.prices import Price
from training.backends import embedded
from training.backends.art_import import import_art
from training.backends.base import BackendUnavailable, Endpoint, ModelSpec
from training.budget import Usage
from training.phases import Phase
from training.rollout.agents.remote import RolloutName
from training.rollout.chat import Chat, open_chat
from training.rollout.environment_calls import off_loop
from training.rollout.fork import Fork
from training.rollout.prompted import PromptedChat
from training.rollout.rollout import Player, RolloutLimits, rollout
from training.rollout_tasks import seed_of
from training.scoring import assign_rewards, judge_group
from training.statistics.sequential import Decision, Evidence, Rule, evidence
from training.statistics.turn_values import next_probe
from training.task_errors import first_of_several
from training.types import FailureKind, Progress, Rollout

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EvaluationDriver:
    """Drives evaluations for a worker."""

    database: Database
    settings: Settings
    connect: Connect
    engine: Engine

    async def drive(
        self,
        job: EvaluationJob,
        lease: Lease[EvaluationJob],
        note: Callable[[Progress], None],
        waits: Callable[[str], None],
    ) -> dict[str, Json]:
        """Drive the evaluation to its end on a separate thread, and return the report.

        `note` and `waits` (with what the evaluation waits for) are called on that thread. Raises LeaseLost,
        RunBudgetReached, and whatever else ends it.
        """
        main_loop = asyncio.get_running_loop()
        request = StoredEvaluation.parse(job.request)
        store = EvaluationStore(self.database)
        prices = prices_of(request, ListedModels(self.settings))
        rows = await retry_while_database_is_down(lambda: store.rows(job.id))
        meter = meter_of(job, request, {Slot.parse(row.slot): row for row in rows}, prices)
        work = _DriveState(
            job, request, lease, main_loop, meter, prices, _SaveCounter(note, request.slots, len(rows), Patience(waits))
        )
        try:
            return await run_in_thread(lambda: self._retrying(work), name=f"evaluation-{job.id}")
        except LeaseLost:
            raise
        except BaseException:
            await self._settle(work)
            raise

    async def _settle(self, work: "_DriveState") -> None:
        """Save usage that led to nothing, because it counts toward the budget. If that fails, nothing else is lost."""
        if not work.meter.limited:
            return
        store, job = EvaluationStore(self.database), work.job
        try:
            rows = {Slot.parse(row.slot): row for row in await store.rows(job.id)}
            saved = saved_usage(await store.get(job.id), rows, work.prices)
            spent = work.meter.used
            lost = Usage(
                max(0, spent.prompt_tokens - saved.prompt_tokens),
                max(0, spent.completion_tokens - saved.completion_tokens),
                max(0.0, (spent.usd or 0.0) - (saved.usd or 0.0)),
            )
            await store.keep_lost(work.lease, asdict(lost))
        except DATABASE_DOWN as error:
            log.warning("usage of an evaluation not saved", evaluation_id=job.id, error=first_line(error))

    async def _retrying(self, work: "_DriveState") -> dict[str, Json]:
        await asyncio.to_thread(import_art)
        structlog.contextvars.bind_contextvars(evaluation_id=work.job.id)
        work.made.saved()
        return await work.made.patience.retrying(lambda: self._evaluate(work))

    async def _evaluate(self, driven: "_DriveState") -> dict[str, Json]:
        job, request, main_loop = driven.job, driven.request, driven.main_loop
        resolving = resolve_references(self.database, self.settings.data_dir, request.environment, job.project)
        whole = await run_on_loop(main_loop, resolving)
        clock = await run_on_loop(main_loop, database_time(self.database))
        async with AsyncExitStack() as stack:
            access = EnvironmentAccess(self.settings)
            environment = stack.enter_context(closing(make_environment(whole, self.settings.data_dir, access)))
            forked = await run_on_loop(main_loop, self._forked(request.what_if)) if request.what_if else None
            if forked is not None:
                begin_with(environment, forked.state)
            run = await run_on_loop(main_loop, self._run(request.rejudge)) if request.rejudge else None
            services = judge_services(self.settings, self.database, main_loop, run, environment)
            gate = asyncio.Semaphore(request.concurrency)
            if run is not None:
                return await self._rejudging(driven, run, environment, services, gate).report()
            work = _EvaluationWork(
                job,
                request,
                environment,
                make_judge(request.judge, services),
                [await stack.enter_async_context(self._chat(each, request, main_loop)) for each in request.models],
                _EvaluationRows(EvaluationStore(self.database), driven.lease, main_loop),
                EvaluationBudget(driven.meter, request, environment, driven.prices),
                gate,
                lambda: clock.now().timestamp(),
                driven.made,
                [await self._player(each, whole, driven, clock) for each in request.models],
                forked,
            )
            trial = await work.all_scenarios()
            return await _report(work, driven.prices) | ({"trial": trial} if trial else {})

    async def _run(self, rejudge: Rejudge) -> Run:
        async with self.database() as tx:
            return await tx.get_one(Run, rejudge.run_id)

    def _rejudging(
        self,
        driven: "_DriveState",
        run: Run,
        environment: Environment,
        services: JudgeServices,
        gate: asyncio.Semaphore,
    ) -> Rejudging:
        return Rejudging(
            driven.job,
            driven.request,
            run.stored_request.config,
            environment,
            services,
            RejudgingStore(self.database),
            driven.lease,
            driven.main_loop,
            EvaluationBudget(driven.meter, driven.request, environment, driven.prices),
            gate,
            driven.made.saved,
        )

    async def _forked(self, what_if: WhatIf) -> "_Forked":
        """Read the recorded rollout of a what-if."""
        async with self.database() as tx:
            row = await tx.get(Trajectory, what_if.trajectory_id)
        assert row is not None  # deleting it deletes the what-if
        recorded = await recorded_rollout(self.database, row)
        forks = [Fork.of(recorded.conversation, turn, what_if.edit, what_if.earlier) for turn in what_if.turns]
        return _Forked(what_if, row, recorded.scenario, forks, await state_after(self.database, what_if.state))

    async def _player(
        self, contestant: Contestant, environment: Choice, driven: "_DriveState", clock: DatabaseTime
    ) -> Player | None:
        own_agents = OwnAgents(self.database, self.settings)
        elsewhere = own_agents.of_evaluation(
            environment, driven.job, contestant, driven.lease, driven.main_loop, clock.now
        )
        modules = self.settings.agent_modules
        return elsewhere or await asyncio.to_thread(make_player, driven.request.agent, environment, modules)

    @asynccontextmanager
    async def _chat(
        self, contestant: Contestant, request: StoredEvaluation, main_loop: asyncio.AbstractEventLoop
    ) -> AsyncIterator[Chat]:
        if contestant.kind == "prompted":
            model = ListedModels(self.settings).model(contestant.model)
            yield PromptedChat(model, concurrency=request.concurrency)
            return
        endpoint = await self._endpoint(contestant, main_loop)
        async with open_chat(endpoint, request.concurrency) as chat:
            yield chat

    async def _endpoint(self, contestant: Contestant, main_loop: asyncio.AbstractEventLoop) -> Endpoint:
        if contestant.spec is None:
            address = await run_on_loop(main_loop, self.engine.address())
            return Endpoint(f"{address.url}/v1", address.key, contestant.model, remembers=True, tells_token_ids=True)
        backend = await self.connect(contestant.backend or embedded.NAME)
        try:
            spec = contestant.spec
            policy = await backend.register(ModelSpec(spec["project"], spec["name"], spec["base_model"]))
            return policy.endpoint(contestant.step)
        finally:
            await backend.close()


@dataclass(frozen=True)
class _Forked:
    """The recorded rollout of a what-if, and its forks by the number of the turn in the request."""

    what_if: WhatIf
    row: Trajectory
    scenario: Scenario
    forks: Sequence[Fork]
    state: Mapping[str, Any] | None

    def next_turn(self, rows: Mapping[Slot, Any]) -> int | None:
        """Return the number of the next turn to sample continuations before, in a search; None at its end."""
        turns = self.what_if.turns
        found = next_probe(values_of(turns, rows.items()), len(turns), bool(self.row.success))
        return None if found is None else turns.index(found)


@dataclass
class _SaveCounter:
    """Counts what was saved. Each save is progress."""

    note: Callable[[Progress], None]
    total: int
    done: int
    patience: Patience

    def saved(self, rollouts: int = 0) -> None:
        """Record that rollouts or verdicts were saved."""
        self.done += rollouts
        self.patience.progressed()
        self.note(Progress(0, Phase.EVALUATE, self.done, self.total))


@dataclass(frozen=True)
class _DriveState:
    """State of driving one evaluation."""

    job: EvaluationJob
    request: StoredEvaluation
    lease: Lease[EvaluationJob]
    main_loop: asyncio.AbstractEventLoop
    meter: Meter
    prices: Sequence[Price | None]
    made: _SaveCounter


@dataclass(frozen=True)
class _EvaluationRows:
    """The evaluation's rows. Used on the evaluation's own event loop; the database is accessed on the service's."""

    store: EvaluationStore
    lease: Lease[EvaluationJob]
    main_loop: asyncio.AbstractEventLoop

    async def rows(self) -> dict[Slot, Any]:
        found = await query(self.main_loop, lambda: self.store.rows(self.lease.id))
        return {Slot.parse(row.slot): row for row in found}

    async def messages(self, slots: Sequence[Slot]) -> dict[str, list[Json]]:
        return await query(self.main_loop, lambda: self.store.messages(self.lease.id, slots))

    async def keep_rollout(self, row: Mapping[str, Json]) -> None:
        await shielded(query(self.main_loop, lambda: self.store.keep_rollout(self.lease, row)))

    async def keep_verdicts(self, verdicts: Sequence[Mapping[str, Json]], judgement: Judgement) -> None:
        calls = judgement.calls
        await shielded(query(self.main_loop, lambda: self.store.keep_verdicts(self.lease, verdicts, calls)))


@dataclass(frozen=True)
class _EvaluationWork:
    """An evaluation in progress."""

    job: EvaluationJob
    request: StoredEvaluation
    environment: Environment
    judge: Judge
    chats: Sequence[Chat]
    saved: _EvaluationRows
    budget: EvaluationBudget
    gate: asyncio.Semaphore
    now: Callable[[], float]
    made: _SaveCounter
    players: Sequence[Player | None]
    """The player that replaces the built-in loop, if any, for each model."""
    forked: _Forked | None = None
    """The rollout that all rollouts continue, if any."""

    async def all_scenarios(self) -> dict[str, Json] | None:
        """Make and judge everything not saved yet; for a trial, until it is decided.

        Returns a trial's verdict, or None if one of its models never answered, because that is no evidence for the
        other one.
        """
        request = self.request
        saved = await self.saved.rows()
        if self.forked is not None and self.forked.what_if.search == "bisect":
            await self._bisect(self.forked)
            return None
        if request.trial is None:
            await self._scenarios(0, request.scenarios, saved)
            return None
        rule = Rule(request.trial.alpha, request.trial.margin, request.trial.look_every)
        found = Evidence(0, 0.0, 0.0)
        for start in range(0, request.scenarios, rule.look_every):
            end = min(start + rule.look_every, request.scenarios)
            await self._scenarios(start, end, saved)
            # Only the scenarios up to this look, so that a worker that takes over sees the same evidence at each look.
            seen = {slot: row for slot, row in (await self.saved.rows()).items() if slot.scenario < end}
            if any(why_no_figures(model, seen) for model in range(len(request.models))):
                return None
            found = evidence(differences(request, seen), rule)
            if found.decision(rule) is not Decision.CONTINUE:
                break
        return _verdict(found, rule)

    async def _bisect(self, forked: _Forked) -> None:
        """Continue from one turn after the other, until the turn that decided the rollout is found."""
        before = None
        # A turn whose continuations could not be judged has no value. It is asked for again, which ends the search.
        while (number := forked.next_turn(saved := await self.saved.rows())) not in (None, before):
            await self._scenarios(number, number + 1, saved)
            before = number

    async def _scenarios(self, start: int, end: int, saved: Mapping[Slot, Any]) -> None:
        """Make and judge the scenarios from number `start` to before `end`. No task is left running."""
        request, made = self.request, self.environment
        if self.forked is None:
            scenarios = await off_loop(made, made.scenarios, request.split, end - start, request.seed, start)
        else:
            scenarios = [self.forked.scenario] * (end - start)
        with first_of_several(LeaseLost):
            async with asyncio.TaskGroup() as group:
                for number, scenario in enumerate(scenarios, start):
                    group.create_task(self._scenario(number, scenario, saved))
                    await asyncio.sleep(0)  # lets the first rollouts start before all tasks are created

    async def _scenario(self, number: int, scenario: Scenario, saved: Mapping[Slot, Any]) -> None:
        slots = [
            Slot(model, number, sample)
            for model in range(len(self.request.models))
            for sample in range(self.request.samples)
        ]
        kept = {slot: saved[slot] for slot in slots if slot in saved}
        if len(kept) == len(slots) and all(row.score_explanation is not None for row in kept.values()):
            return
        async with asyncio.TaskGroup() as group:
            making = {slot: group.create_task(self._rollout(slot, scenario)) for slot in slots if slot not in kept}
        again = await self.saved.messages(list(kept)) if kept else {}
        rollouts = [
            stored_rollout(scenario, kept[slot], again[kept[slot].id]) if slot in kept else making[slot].result()
            for slot in slots
        ]
        async with self.budget.judging() as judged:
            judgement = await judge_group(self.judge, scenario, rollouts)
            judged(judgement)
        made = self.environment
        scored = (await off_loop(made, assign_rewards, made, scenario, rollouts, judgement)).rollouts
        verdicts = [
            {"id": each.rollout.id, "why_no_success": each.why_no_success} | verdict_row(each) for each in scored
        ]
        await self.saved.keep_verdicts(verdicts, judgement)
        self.made.saved()
        count_judge_calls(judgement.calls)

    async def _rollout(self, slot: Slot, scenario: Scenario) -> Rollout:
        """Make a rollout and save it.

        Raises BackendUnavailable if the rollout gave up on an unavailable endpoint, because that says nothing about the
        model.
        """
        request, chat = self.request, self.chats[slot.model]
        limits = RolloutLimits(
            request.max_turns, request.max_completion_tokens, request.rollout_timeout_s, request.temperature
        )
        async with self.gate, self.budget.rollout(slot.model, scenario) as reservation:
            made = await rollout(
                self.environment,
                scenario,
                chat,
                limits,
                id=str(ULID()),
                seed=self._seed(slot),
                reservation=reservation,
                agent=self.players[slot.model],
                fork=self.forked.forks[slot.scenario] if self.forked else None,
                name=RolloutName(0, str(slot)),
                now=self.now,
            )
            self.budget.saw(made)
        if chat.remembers and made.failure is not None and made.failure.kind is FailureKind.BACKEND_AWAY:
            raise BackendUnavailable(made.error)
        contestant, kind = request.models[slot.model], "what_if" if self.forked else "evaluation"
        row = rollout_row(made) | {
            "evaluation_id": self.job.id,
            "slot": str(slot),
            "project": self.job.project,
            "kind": kind,
            "mode": "sampled" if request.temperature else "greedy",
            "model": contestant.model,
            "step": contestant.step,
            "score_parts": {},
            "reward_parts": {},
        }
        await self.saved.keep_rollout(row)
        count_rollouts(kind, [made])
        self.made.saved(1)
        return made

    def _seed(self, slot: Slot) -> int:
        """Return the seed of a rollout: the same for all models, so that only the models differ."""
        if self.forked is None:
            return seed_of(self.request.seed, "evaluation", self.request.split, slot.scenario, slot.sample)
        what_if = self.forked.what_if
        if what_if.own_seed is not None:
            return what_if.own_seed
        return seed_of(self.request.seed, "what_if", what_if.turns[slot.scenario], slot.sample)


def _verdict(found: Evidence, rule: Rule) -> dict[str, Json]:
    """Return a trial's decision and the evidence for it."""
    decision = found.decision(rule)
    return {
        "decision": "undecided" if decision is Decision.CONTINUE else str(decision),
        "pairs": found.pairs,
        "log_wealth_better": found.better,
        "log_wealth_not_by_margin": found.not_by_margin,
        "alpha": rule.alpha,
        "margin": rule.margin,
        "look_every": rule.look_every,
    }


async def _report(work: _EvaluationWork, prices: Sequence[Price | None]) -> dict[str, Json]:
    rows = await work.saved.rows()
    costs = [
        None
        if price is None
        else price.of(
            sum(row.prompt_tokens for slot, row in rows.items() if slot.model == number),
            sum(row.completion_tokens for slot, row in rows.items() if slot.model == number),
        )
        for number, price in enumerate(prices)
    ]
    report = await asyncio.to_thread(report_of, work.request, list(rows.values()), costs)
    if work.forked is None:
        return report
    messages = await work.saved.messages(list(rows))
    what_if = await asyncio.to_thread(what_if_report, work.request, work.forked.row, rows, messages)
    return {**report, "what_if": what_if}
