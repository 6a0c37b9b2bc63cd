"""Drives a run under a lease: sets it up, continues where it stopped, and saves what the learn loop yields."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from learnloop_service.app.agent_sessions.served import answer_row, read_answers
from learnloop_service.app.aio.event_loops import run_in_thread, run_on_loop, shielded
from learnloop_service.app.aio.retry import Result, retry_while_database_is_down
from learnloop_service.app.backends import Connect
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.datasets.documents import resolve_references, stored_text
from learnloop_service.app.db.clock import DatabaseTime, database_time
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.stored_request import Choice, StoredBudget, StoredRequest
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.results.files import ResultsFiles
from learnloop_service.app.runs import diagnoses, ledger
from learnloop_service.app.runs.budget import Clock, Meter
from learnloop_service.app.runs.configuration import make_environment, make_judge, model_spec
from learnloop_service.app.runs.day_spending import spending
from learnloop_service.app.runs.forecast import stopping_of
from learnloop_service.app.runs.no_signal import check_rule
from learnloop_service.app.runs.reproducibility import save_reproducibility
from learnloop_service.app.runs.resume_point import begin_with, inherited_state, resume_of
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.app.tracing.tracer import Tracing
from learnloop_service.app.worker.checkpoint_retention import prune
from learnloop_service.app.worker.driven import Patience, query
from learnloop_service.app.worker.journal_store import JournalTimes, StoredJournal
from learnloop_service.app.worker.measures import count_diagnoses, count_iteration
from learnloop_service.app.worker.own_agents import OwnAgents
from learnloop_service.app.worker.rollout_sessions import LeasedSessions
from learnloop_service.app.worker.save_iteration import iteration_rows, save_iteration, saved_baseline
from learnloop_service.environment.access import Access
from learnloop_service.environment.base import Environment, Json
from learnloop_service.environment.registry import traits
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.training.backends.base import Policy
from learnloop_service.training.budget import RunBudget
from learnloop_service.training.diagnosis.collapses import rolled_out
from learnloop_service.training.diagnosis.examine import examine
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.journal import Journal
from learnloop_service.training.loop.run_record import RunRecord
from learnloop_service.training.loop.served_answers import AnswerRow, AnswersRecord
from learnloop_service.training.loop.warm_start import Demonstrations
from learnloop_service.training.phases import Phase
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.model_calls import AnsweredCall
from learnloop_service.training.rollout.rollout import Player
from learnloop_service.training.stopping import Stopping
from learnloop_service.training.types import IterationProgress, IterationResult, Resume, RunConfig

MakeServices = Callable[[Run, Environment], JudgeServices]
"""Makes the services for a run's judge. It is called, and they are used, on the run's own event loop."""


class LearnLoop(Protocol):
    """The signature of `learnloop_service.training.loop.learn_loop.learn_loop`."""

    def __call__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        policy: Policy,
        *,
        progress: Callable[[IterationProgress], None],
        journal: Journal,
        resume: Resume | None,
        budget: RunBudget,
        agent: Player | None,
        prompt: Prompt | None,
        now: Callable[[], float],
        demonstrations: Demonstrations | RunRecord,
        another_environment: Callable[[], Environment],
        stopping: Stopping,
    ) -> AsyncGenerator[IterationResult, None]: ...


_TRACED_SEPARATELY = ("environment", "judge", "agent", "model")

_SETTLE_S = 5.0
"""How long the journal and the ledger wait for an unavailable database once the work has stopped."""

log = structlog.get_logger(__name__)


@dataclass
class _Work:
    """State of driving one run."""

    run: Run
    request: StoredRequest
    lease: Lease[Run]
    main_loop: asyncio.AbstractEventLoop
    journal: StoredJournal
    meter: Meter
    note: Callable[[IterationProgress], None]
    waits: Callable[[str], None]
    facts: list[Facts]
    """Facts of the saved iterations, for diagnoses."""
    clock: DatabaseTime
    """Database time, read again after each iteration because the monotonic clock stops while a machine sleeps."""

    def now(self) -> float:
        """Return the database's time in seconds since the epoch."""
        return self.clock.now().timestamp()

    async def query(self, act: Callable[[], Awaitable[Result]]) -> Result:
        """Use the database on the service's event loop, and retry while it is down."""
        return await query(self.main_loop, act)


class _BackgroundFiles:
    """Writes a run's results files while its next iteration runs, which does not need them. One write at a time."""

    def __init__(self, write: Callable[[], Coroutine[None, None, None]]) -> None:
        self._write = write
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start to write the current results once the previous write has ended. Raises what that write raised."""
        await self._end()
        self._task = asyncio.create_task(self._write())

    async def _end(self) -> None:
        if (task := self._task) is not None:
            await asyncio.wait((task,))
            self._task = None
            task.result()

    async def __aenter__(self) -> "_BackgroundFiles":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the write. An error that ended the run takes precedence over an unavailable database."""
        with suppress(*(DATABASE_DOWN if kind else ())):
            await self._end()


@dataclass(frozen=True)
class Driver:
    """Drives runs for a worker."""

    database: Database
    connect: Connect
    judge_services: MakeServices
    results: ResultsFiles
    data_dir: Path
    learn: LearnLoop
    tracing: Tracing
    own_agents: OwnAgents
    access: Access | None = None
    """What the runs' environments can reach; None means nothing."""
    clock: Clock = time.monotonic
    """Clock that measures how long a run is driven."""

    async def drive(
        self,
        run: Run,
        lease: Lease[Run],
        note: Callable[[IterationProgress], None],
        waits: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Drive the run to its end on a separate thread. Results are saved on the caller's event loop.

        `note`, `waits` (with what the run waits for) and `on_lost` are called on that thread. Raises LeaseLost,
        BudgetReached, NoSignalStop, DiagnosisStop, and whatever else ends a run.
        """
        main_loop = asyncio.get_running_loop()
        prior = await retry_while_database_is_down(lambda: ledger.prior_usage(self.database, run.id))
        request = run.stored_request
        meter = Meter(request.budget or StoredBudget(), prior, self.clock)
        clock = await retry_while_database_is_down(lambda: database_time(self.database))
        journal = StoredJournal(self.database, lease, main_loop, on_lost, replaces=request.config.replace_groups)
        work = _Work(run, request, lease, main_loop, journal, meter, note, waits, [], clock)
        try:
            async with spending(self.database, run, lease, meter):
                await run_in_thread(lambda: self._learn_with_retries(work), name=f"run-{run.id}")
            if request.config.end_when_learned or request.config.stop_when:
                await self._settle(work)  # rollouts can have run ahead of the end
        except LeaseLost:
            raise
        except BaseException:
            await self._settle(work)
            raise

    async def _settle(self, work: _Work) -> None:
        """Save what the unfinished iteration used. If the database stays down, only these figures are lost."""
        seconds = work.meter.unsettled_s()
        try:
            await retry_while_database_is_down(
                lambda: ledger.save_unfinished(self.database, work.lease, work.meter, seconds), _SETTLE_S
            )
        except (LeaseLost, *DATABASE_DOWN) as error:
            log.warning("ledger not saved", run_id=work.run.id, error=str(error))

    async def _learn_with_retries(self, work: _Work) -> None:
        """Learn, and wait for an unavailable backend."""
        structlog.contextvars.bind_contextvars(run_id=work.run.id)
        patience = Patience(work.waits)
        trained = -1  # the last iteration whose training progressed

        def noted(progress: IterationProgress) -> None:
            nonlocal trained
            trains = progress.phase is Phase.TRAIN
            # The steps of a training that fails are lost, so they are progress only once.
            if progress.done and not (trains and progress.iteration <= trained):
                patience.progressed()
                trained = progress.iteration if trains else trained
            work.note(progress)

        # Opened here because a new thread does not inherit its parent's context.
        with self.tracing.run(work.run.id, work.lease.worker, _trace_inputs(work.run, work.request)):
            await patience.retrying(lambda: self._learn_and_flush(work, noted))

    async def _learn_and_flush(self, work: _Work, note: Callable[[IterationProgress], None]) -> None:
        """Learn. On failure or cancellation, flush the journal, so that finished and answered work is kept."""
        try:
            await self._learn(work, note)
        except (LeaseLost, *DATABASE_DOWN):
            raise
        except asyncio.CancelledError:
            with suppress(LeaseLost, *DATABASE_DOWN):  # a planned stop tolerates an unavailable database
                await work.journal.flush(_SETTLE_S)
            raise
        except Exception:
            await work.journal.flush()
            raise

    async def _resume(self, work: _Work) -> Resume | None:
        """Return where the run continues, and load the facts of its iterations; None if it begins."""
        work.facts = await work.query(lambda: diagnoses.facts_of(self.database, work.run.id))
        resume = await work.query(lambda: resume_of(self.database, work.run.id))
        log.info("run continues", environment=work.run.environment, iteration=resume.iteration if resume else 0)
        if resume is None:
            return None
        groups = {
            facts.iteration: (*facts.groups, *(replace(group, represents=0.0) for group in facts.replacements))
            for facts in work.facts
        }
        return replace(resume, rolled_out=list(rolled_out(work.facts)), groups=groups)

    async def _learn(self, work: _Work, note: Callable[[IterationProgress], None]) -> None:
        run, request = work.run, work.request
        await self._check_rules(work)  # the previous worker may have died before its check
        resume = await self._resume(work)
        async with AsyncExitStack() as stack:
            choice = await work.query(
                lambda: resolve_references(self.database, self.data_dir, request.environment, run.model_project)
            )
            prompt = await work.query(lambda: read_stored(self.database, run.model_project, request.prompt))
            another = partial(make_environment, choice, self.data_dir, self.access)
            environment = stack.enter_context(closing(another()))
            if resume is None:
                begin_with(environment, await work.query(lambda: inherited_state(self.database, run.id)))
            backend = await self.connect(run.backend)
            stack.push_async_callback(backend.close)
            policy = await backend.register(model_spec(run))
            await work.query(lambda: save_reproducibility(self.database, work.lease, policy.reproducibility))
            results = self.learn(
                request.config,
                environment,
                make_judge(request.judge, self.judge_services(run, environment)),
                policy,
                progress=note,
                journal=work.journal,
                resume=resume,
                budget=work.meter,
                agent=await self._player(work, choice),
                prompt=prompt,
                now=work.now,
                demonstrations=await self._answers(work) or await self._demonstrations(work, resume),
                another_environment=another,
                stopping=(stopping := await work.query(lambda: stopping_of(self.database, run))),
            )
            write = partial(work.query, lambda: self.results.write(run.id))
            files = await stack.enter_async_context(_BackgroundFiles(write))
            await stack.enter_async_context(aclosing(results))
            async for result in results:
                clock = time.monotonic()
                repeats = request.agent is None and traits(choice.name).repeats
                facts = await examine(result, request.config, policy, environment, prompt, repeats=repeats)
                examine_s = time.monotonic() - clock
                log.info("iteration examined", run_id=run.id, iteration=result.iteration, seconds=round(examine_s, 4))
                # Shielded, because a cancelled commit leaves open whether the iteration is saved.
                await shielded(self._save(work, result, facts))
                await self._note_cost(work, stopping)
                await files.begin()
                await self._check_rules(work)
                await prune(self.database, work.main_loop, run, request.checkpoints, backend, policy)

    async def _note_cost(self, work: _Work, stopping: Stopping) -> None:
        """Add the iteration that was just saved, of which it is known now what it cost, if the run has a rule."""
        if work.request.config.stop_when:
            stopping.add(*(await work.query(lambda: stopping_of(self.database, work.run))).points[-1:])

    async def _demonstrations(self, work: _Work, resume: Resume | None) -> Demonstrations:
        """Return the demonstrations for the run's warm start; empty if it has none or has finished it."""
        start, config = work.request.warm_start, work.request.config
        if start is None or (resume is not None and resume.iteration > config.supervised_iterations):
            return ()
        if start.sha256 is None:
            return int(start.demonstrations["oracle"])
        hash, project = start.sha256, work.run.model_project
        text = await work.query(lambda: stored_text(self.database, project, "demonstrations", hash))
        demonstrations: list[Json] = await asyncio.to_thread(json.loads, text)
        return demonstrations

    async def _answers(self, work: _Work) -> AnswersRecord | None:
        """Return the record of a run that learns from served answers."""
        project, served = work.run.model_project, work.request.served
        if served is None:
            return None
        text = await work.query(lambda: stored_text(self.database, project, "served", served["sha256"]))
        rows = [answer_row(row) for row in await asyncio.to_thread(json.loads, text)]

        async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall] | None]:
            return await work.query(lambda: read_answers(self.database, project, some))

        return AnswersRecord(work.request.config, served["start"], rows, read)

    async def _player(self, work: _Work, environment: Choice) -> Player | None:
        project, backend = work.run.model_project, work.run.backend
        sessions = LeasedSessions(self.database, work.lease, work.main_loop, project=project, backend=backend)
        return await self.own_agents.player(environment, work.request, sessions, lambda: work.clock.now())

    async def _check_rules(self, work: _Work) -> None:
        """Raise NoSignalStop or DiagnosisStop if one of the run's rules stops it now."""
        rule = work.request.on_no_signal
        await work.query(lambda: check_rule(self.database, work.run.id, rule))
        await work.query(lambda: diagnoses.check_rule(self.database, work.run.id))

    async def _save(self, work: _Work, result: IterationResult, facts: Facts) -> None:
        """Save an iteration, on the run's thread because rollouts that run ahead are charged to its meter there."""
        await work.journal.flush()  # an entry written after the iteration would be left over
        meter, seconds = work.meter, work.meter.unsettled_s()
        used = ledger.entries_of(result, meter, seconds)
        await run_on_loop(work.main_loop, self._save_rows(work, result, facts, used))
        meter.settled(seconds, result.iteration)
        cost, work.journal.cost = work.journal.cost, JournalTimes()
        log.info(
            "iteration saved",
            run_id=work.run.id,
            iteration=result.iteration,
            step=result.step,
            reward=result.rewards.mean,
            success=result.success,
            seconds=round(result.timing.total_s, 2),
            journal_s=round(cost.waited_s, 3),
            journal_beside_s=round(cost.beside_s, 3),
        )

    async def _save_rows(
        self, work: _Work, result: IterationResult, facts: Facts, used: Sequence[ledger.NewLedgerEntry]
    ) -> None:
        baseline = None
        if result.iteration > 0 and result.evaluations:
            baseline = await retry_while_database_is_down(lambda: saved_baseline(self.database, work.run.id))
        all_facts = [*work.facts, facts]
        rows = await asyncio.to_thread(iteration_rows, work.run, work.request, result, used, all_facts, baseline)
        await retry_while_database_is_down(lambda: save_iteration(self.database, work.lease, rows))
        work.clock = await retry_while_database_is_down(lambda: database_time(self.database))
        work.facts = all_facts
        count_iteration(result)
        count_diagnoses(rows.diagnoses, result.iteration)


def _trace_inputs(run: Run, request: StoredRequest) -> dict[str, Json]:
    """Return the inputs that the run's first span shows."""
    return {
        "model": asdict(model_spec(run)),
        "environment": request.environment.model_dump(),
        "judge": request.judge.model_dump(),
        "agent": request.agent and request.agent.model_dump(),
        "config": {name: value for name, value in run.request.items() if name not in _TRACED_SEPARATELY},
    }
