"""The rollouts that an iteration makes, and the verdicts on them; what the journal has of them is not made again."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from ulid import ULID

from environment.base import Environment, Scenario
from environment.plugins import PluginFault
from judges.base import Judge, Judgement
from training.backends.base import BackendUnavailable, Endpoint
from training.budget import (
    BudgetReached,
    Estimates,
    IterationBudget,
    RunBudget,
    Usage,
    usage_of_calls,
    usage_of_entries,
)
from training.journal import (
    EntryName,
    IterationJournal,
    Journal,
    dump_judgements,
    dump_rollout,
    load_judgements,
    load_rollout,
)
from training.phases import Phase, Purpose
from training.recorded_calls import RecordedCalls
from training.rollout.agents.remote import RemoteRollouts, RolloutName
from training.rollout.chat import Chat, EndpointChat, open_chat
from training.rollout.rollout import Player, failed, rollout
from training.scoring import assign_rewards, judge_group
from training.types import FailureKind, Group, Progress, Rollout, RunConfig

Report = Callable[[Progress], None]
T = TypeVar("T")

_HEAD_START_S = 0.05
"""So long the first request of many may take to be sent before the next ones are made."""


class RolloutsFailed(Exception):
    """Every rollout of an iteration, or of one of its evaluations, failed: there is nothing to learn or to report."""


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """A rollout to make: which scenario, and the seed of its randomness."""

    scenario: Scenario
    seed: int


def seed_of(run_seed: int, *parts: object) -> int:
    """The seed for one purpose of a run."""
    return Random(":".join(map(str, (run_seed, *parts)))).getrandbits(53)


def rollout_tasks(run_seed: int, scenarios: Sequence[Scenario], each: int, *parts: object) -> list[RolloutTask]:
    """`each` rollouts of each scenario. Their seeds differ even where a scenario was drawn twice."""
    return [
        RolloutTask(scenario, seed_of(run_seed, *parts, place, number))
        for place, scenario in enumerate(scenarios)
        for number in range(each)
    ]


class RolloutGate:
    """Lets so many rollouts of a run be made at the same time. Of those that wait, the earliest iteration's go first:
    no iteration waits for one that runs ahead of it."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    @asynccontextmanager
    async def turn(self, iteration: int) -> AsyncIterator[None]:
        """Around a rollout of that iteration."""
        await self._enter(iteration)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, iteration: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (iteration, next(self._number), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was our turn already
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the iterations of a run have in common."""

    config: RunConfig
    environment: Environment
    judge: Judge
    journal: Journal
    progress: Report
    budget: RunBudget
    estimates: Estimates
    gate: RolloutGate
    now: Callable[[], float]
    """Dates the rollouts, in seconds since the epoch."""
    agent: Player | None = None
    """One that owns its loop; None: the built-in loop."""

    async def collector(self, iteration: int) -> "RolloutCollector":
        """The collector of that iteration."""
        journal = await IterationJournal.open(self.journal, iteration)
        used = await asyncio.to_thread(usage_of_entries, journal.kept)
        return RolloutCollector(self, journal, self.budget.for_iteration(iteration, used))


class RolloutCollector:
    """Makes and judges the rollouts of one iteration."""

    def __init__(self, run: RunContext, journal: IterationJournal, budget: IterationBudget) -> None:
        self.journal = journal
        self._run = run
        self._budget = budget
        self._counts: dict[Phase, _Counted] = {}

    def within(self, run: RunContext) -> "RolloutCollector":
        """The same iteration's, in that context."""
        return RolloutCollector(run, self.journal, self._budget)

    async def admit(self, phase: Phase) -> None:
        """Raises BudgetReached where the run has nothing left for the phase."""
        async with self._budget.reserve(phase, Usage):
            pass

    async def rollouts(
        self,
        purpose: Purpose,
        tasks: Sequence[RolloutTask],
        endpoint: Endpoint,
        temperature: float,
        begun: asyncio.Event | None = None,
    ) -> list[Rollout]:
        """One rollout for each task, in their order, `concurrency` at a time, those of other calls counted. None is
        left running at the end. `begun` is set when all are under way.

        Raises RolloutsFailed if every one of them failed, except for a showcase. Raises BackendUnavailable where the
        endpoint was away for so long that a rollout gave up: that says nothing about the agent, and the journal would
        keep it for good. Raises BudgetReached if a rollout does not fit the budget, once those that have begun are
        finished and kept.
        """
        counted = self._counted(purpose.rollout_phase, len(tasks))
        started: list[asyncio.Task[Rollout | BudgetReached]] = []
        with first_of_several():
            async with open_chat(endpoint, self._run.config.concurrency) as chat, asyncio.TaskGroup() as group:
                for number, task in enumerate(tasks):
                    entry = EntryName("rollout", purpose, number)
                    made = self._rollout_in_budget(task, entry, chat, temperature, counted)
                    started.append(group.create_task(made))
                    if number == 0 and not isinstance(self._run.agent, RemoteRollouts):
                        await _head_start(started[0], chat)
                    await asyncio.sleep(0)  # requests are sent while others are still being made
                if begun is not None:
                    begun.set()
        rollouts = []
        for each in started:
            if isinstance(outcome := each.result(), BudgetReached):
                raise outcome
            rollouts.append(outcome)
        if failed(rollouts) == len(rollouts) and purpose is not Purpose.SHOWCASE:
            raise RolloutsFailed(
                f"all {len(rollouts)} rollouts of iteration {self.journal.iteration} failed, the first: "
                f"{rollouts[0].error}"
            )
        return rollouts

    def _counted(self, phase: Phase, more: int) -> "_Counted":
        """Counts so many more rollouts of a phase, together with those that are being made."""
        counted = self._counts.get(phase)
        if counted is None or counted.complete:
            counted = self._counts[phase] = _Counted(self._run.progress, self.journal.iteration, phase)
        counted.expect(more)
        return counted

    async def _rollout_in_budget(
        self, task: RolloutTask, entry: EntryName, chat: Chat, temperature: float, counted: "_Counted"
    ) -> Rollout | BudgetReached:
        """As `_rollout`. BudgetReached is returned, because raising it would cancel the rollouts that have begun."""
        try:
            return await self._rollout(task, entry, chat, temperature, counted)
        except BudgetReached as reached:
            return reached

    async def _rollout(
        self,
        task: RolloutTask,
        entry: EntryName,
        chat: Chat,
        temperature: float,
        counted: "_Counted",
    ) -> Rollout:
        """The journal's rollout; a new one if it has none."""
        if (kept := self.journal.kept.get(str(entry))) is not None:
            counted.found()
            return load_rollout(task.scenario, kept)
        run = self._run
        worst_case = partial(run.estimates.rollout, task.scenario)
        with self._recorded(entry) as recorded:
            async with (
                run.gate.turn(self.journal.iteration),
                self._budget.reserve(entry.phase, worst_case) as reservation,
            ):
                finished = await rollout(
                    run.environment,
                    task.scenario,
                    chat,
                    id=str(ULID()),
                    seed=task.seed,
                    max_turns=run.config.max_turns,
                    temperature=temperature,
                    max_completion_tokens=run.config.max_completion_tokens,
                    timeout_s=run.config.rollout_timeout_s,
                    reservation=reservation,
                    recorded=recorded,
                    agent=run.agent,
                    name=RolloutName(self.journal.iteration, str(entry)),
                    now=run.now,
                )
                run.estimates.saw_rollout(finished)
            if chat.remembers and finished.failure is not None and finished.failure.kind is FailureKind.BACKEND_AWAY:
                raise BackendUnavailable(finished.error)
        self.journal.keep_soon(str(entry), dump_rollout(finished))
        counted.made()
        return finished

    def _recorded(self, entry: EntryName) -> RecordedCalls:
        """The answered calls of that rollout, with those that the journal has; further ones go to the journal."""
        kept: list[str] = []
        while (part := self.journal.kept.get(str(entry.calls(len(kept))))) is not None:
            kept.append(part)
        further = itertools.count(len(kept))
        return RecordedCalls(kept, lambda part: self.journal.keep_soon(str(entry.calls(next(further))), part))

    async def scored(
        self, purpose: Purpose, scenarios: Sequence[Scenario], rollouts: Sequence[Rollout]
    ) -> tuple[Group, ...]:
        """Score the rollouts, which come in the order of their scenarios, equally many for each."""
        each = len(rollouts) // len(scenarios)
        groups = [rollouts[number * each : (number + 1) * each] for number in range(len(scenarios))]
        self._run.progress(Progress(self.journal.iteration, Phase.JUDGE, 0, len(scenarios)))
        judgements = await self._judgements(purpose, scenarios, groups)
        return tuple(
            assign_rewards(self._run.environment, scenario, group, judgement)
            for scenario, group, judgement in zip(scenarios, groups, judgements, strict=True)
        )

    async def _judgements(
        self, purpose: Purpose, scenarios: Sequence[Scenario], groups: Sequence[Sequence[Rollout]]
    ) -> list[Judgement]:
        """The verdicts on each group, given once: a judge that is a model might give others next time."""
        entry = str(EntryName("judge", purpose))
        if entry in self.journal.kept:
            return load_judgements(self.journal.kept[entry])
        judgements = await all_of(
            *(
                self._judgement(EntryName("judge", purpose, number), scenario, group)
                for number, (scenario, group) in enumerate(zip(scenarios, groups, strict=True))
            )
        )
        self.journal.keep_soon(entry, dump_judgements(judgements))  # written with the intent to train
        return judgements

    async def _judgement(self, entry: EntryName, scenario: Scenario, group: Sequence[Rollout]) -> Judgement:
        """The verdicts on one group; kept group by group where they cost something."""
        if (kept := self.journal.kept.get(str(entry))) is not None:
            [judgement] = load_judgements(kept)
            return judgement
        estimates = self._run.estimates
        async with self._budget.reserve(entry.phase, lambda: estimates.judging) as reservation:
            judgement = await judge_group(self._run.judge, scenario, group)
            estimates.saw_judgement(judgement)
            reservation.spend(usage_of_calls(judgement.calls))
        if judgement.calls:
            self.journal.keep_soon(str(entry), dump_judgements([judgement]))
        return judgement


async def _head_start(first: asyncio.Task[Rollout | BudgetReached], chat: EndpointChat) -> None:
    """Let the first request be sent, so that the model has work: that takes ten rounds of the event loop, and in each
    of them another rollout would be made."""
    sent = asyncio.create_task(chat.sent.wait())
    try:
        await asyncio.wait((first, sent), timeout=_HEAD_START_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sent.cancel()


class _Counted:
    """How many of the rollouts that are made at the same time are done."""

    def __init__(self, report: Report, iteration: int, phase: Phase) -> None:
        self._report = report
        self._iteration = iteration
        self._phase = phase
        self._total = 0
        self._done = 0

    @property
    def complete(self) -> bool:
        """Whether none is left to be made."""
        return self._done == self._total

    def expect(self, more: int) -> None:
        """So many more are to be made."""
        self._total += more
        self._publish()

    def found(self) -> None:
        """One was in the journal. Not reported: that is no progress of this process."""
        self._done += 1

    def made(self) -> None:
        """One was made."""
        self._done += 1
        self._publish()

    def _publish(self) -> None:
        self._report(Progress(self._iteration, self._phase, self._done, self._total))


async def all_of(*works: Coroutine[Any, Any, T]) -> list[T]:
    """The results of works that go on at the same time. Where some fail, the error that says most, when all have ended:
    none is left running, and what one of them has begun is not lost by another's failure."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    with first_of_several():
        if errors := [each for each in outcomes if isinstance(each, Exception)]:
            raise ExceptionGroup("of works that went on at the same time", errors)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


@contextmanager
def first_of_several(*before: type[Exception]) -> Iterator[None]:
    """Where task groups raise several errors, the one that says most: one of the kinds `before`, then of those that
    rollouts raise for a reason, then the first."""
    try:
        yield
    except ExceptionGroup as group:
        found: ExceptionGroup[Exception] | None
        for kind in (*before, PluginFault, BackendUnavailable, BudgetReached, Exception):
            if (found := group.subgroup(kind)) is not None:
                raise _first(found) from group


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found: Exception = group
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
