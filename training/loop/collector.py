"""Makes and judges the rollouts of an iteration, except those that the journal already has."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ulid import ULID

from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.judges.base import Judge, Judgement
from learnloop_service.training.backends.base import BackendUnavailable, Endpoint
from learnloop_service.training.budget import (
    BudgetReached,
    Estimates,
    IterationBudget,
    RunBudget,
    Usage,
    usage_of_calls,
    usage_of_entries,
)
from learnloop_service.training.group_facts import GroupFacts
from learnloop_service.training.journal import (
    EntryName,
    IterationJournal,
    Journal,
    dump_judgements,
    dump_rollout,
    load_judgements,
    load_rollout,
)
from learnloop_service.training.loop.rollout_gate import RolloutGate
from learnloop_service.training.loop.rollout_progress import FailureCount, Report, RolloutProgress
from learnloop_service.training.loop.rollout_tasks import RolloutTask
from learnloop_service.training.loop.task_errors import all_of, first_of_several
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.recorded_calls import RecordedCalls
from learnloop_service.training.rollout.agents.remote import RolloutName
from learnloop_service.training.rollout.chat import Chat, open_chat
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.rollout import Player, RolloutLimits, failed, rollout
from learnloop_service.training.scoring import assign_rewards, judge_group
from learnloop_service.training.types import FailureKind, Group, IterationProgress, Rollout, RunConfig


class RolloutsFailed(Exception):
    """Every rollout of an iteration, or of one of its evaluations, failed, so there is nothing to learn from or to
    report."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all iterations of a run share."""

    config: RunConfig
    environment: Environment
    judge: Judge
    journal: Journal
    progress: Report
    budget: RunBudget
    estimates: Estimates
    gate: RolloutGate
    now: Callable[[], float]
    """Clock for timestamps of rollouts, in seconds since the epoch."""
    agent: Player | None = None
    """Agent that owns its loop; None for the built-in loop."""
    prompt: Prompt | None = None
    """Texts in place of the environment's; None for its own."""
    groups: dict[int, Sequence[GroupFacts]] = field(default_factory=dict)
    """All groups so far, by iteration."""
    pool: list[Scenario] = field(default_factory=list)
    """The scenarios that can be drawn by difficulty; empty until the first draw."""

    async def collector(self, iteration: int) -> "RolloutCollector":
        """Return the collector for an iteration."""
        journal = await IterationJournal.open(self.journal, iteration)
        used = await asyncio.to_thread(usage_of_entries, journal.kept)
        return RolloutCollector(self, journal, self.budget.for_iteration(iteration, used))


class RolloutCollector:
    """Makes and judges the rollouts of one iteration."""

    def __init__(
        self, run: RunContext, journal: IterationJournal, budget: IterationBudget, failures: FailureCount | None = None
    ) -> None:
        self.journal = journal
        self._run = run
        self._budget = budget
        self._failures = failures or FailureCount(journal.iteration)
        self._progress = RolloutProgress(journal.iteration, run.progress, self._failures)

    def within(self, run: RunContext) -> "RolloutCollector":
        """Return a collector for the same iteration in another context."""
        return RolloutCollector(run, self.journal, self._budget, self._failures)

    async def admit(self, phase: Phase) -> None:
        """Raise BudgetReached if the budget does not allow the phase."""
        async with self._budget.reserve(phase, Usage):
            pass

    async def rollouts(
        self,
        purpose: Purpose,
        tasks: Sequence[RolloutTask],
        endpoint: Endpoint,
        temperature: float,
        numbers: Sequence[int] | None = None,
    ) -> list[Rollout]:
        """Make one rollout for each task, and return them in the order of the tasks. None is left running at the end.
        `numbers` are those of the rollouts, if the tasks are only a part of those for this purpose.

        Raises RolloutsFailed if all of them failed, except for a showcase or replacements. Raises BackendUnavailable if
        a rollout gave up waiting for an endpoint that keeps conversation state: the failure says nothing about the
        agent, and must not be saved in the journal. Raises BudgetReached if a rollout does not fit the budget, after
        those that have begun are finished and saved.
        """
        if not tasks:
            return []
        config = self._run.config
        limits = RolloutLimits(config.max_turns, config.max_completion_tokens, config.rollout_timeout_s, temperature)
        self._progress.expect(purpose.rollout_phase, len(tasks))
        with first_of_several():
            async with open_chat(endpoint, config.concurrency) as chat, asyncio.TaskGroup() as group:
                entries = [EntryName("rollout", purpose, number) for number in numbers or range(len(tasks))]
                started = [
                    group.create_task(self._rollout_in_budget(task, entry, chat, limits))
                    for task, entry in zip(tasks, entries, strict=True)
                ]
        rollouts = []
        for making in started:
            if isinstance(outcome := making.result(), BudgetReached):
                raise outcome
            rollouts.append(outcome)
        if failed(rollouts) == len(rollouts) and purpose not in (Purpose.SHOWCASE, Purpose.REPLACEMENT):
            raise RolloutsFailed(
                f"all {len(rollouts)} rollouts of iteration {self.journal.iteration} failed, the first: "
                f"{rollouts[0].error}"
            )
        return rollouts

    async def _rollout_in_budget(
        self, task: RolloutTask, entry: EntryName, chat: Chat, limits: RolloutLimits
    ) -> Rollout | BudgetReached:
        """Like `_rollout`, but return BudgetReached, because raising it would cancel the rollouts that have begun."""
        try:
            return await self._rollout(task, entry, chat, limits)
        except BudgetReached as reached:
            return reached

    async def _rollout(self, task: RolloutTask, entry: EntryName, chat: Chat, limits: RolloutLimits) -> Rollout:
        """Return the rollout from the journal, or make it."""
        if (saved := self.journal.kept.get(str(entry))) is not None:
            loaded = load_rollout(task.scenario, saved)
            self._progress.loaded(entry.phase, loaded.error)
            return loaded
        run, worst_case = self._run, partial(self._run.estimates.rollout, task.scenario)
        with self._recorded_calls(entry) as recorded:
            async with (
                run.gate.turn(self.journal.iteration),
                self._budget.reserve(entry.phase, worst_case) as reservation,
            ):
                finished = await rollout(
                    run.environment,
                    task.scenario,
                    chat,
                    limits,
                    id=str(ULID()),
                    seed=task.seed,
                    reservation=reservation,
                    recorded=recorded,
                    agent=run.agent,
                    prompt=run.prompt,
                    name=RolloutName(self.journal.iteration, str(entry)),
                    now=run.now,
                )
                run.estimates.saw_rollout(finished)
            if chat.remembers and finished.failure is not None and finished.failure.kind is FailureKind.BACKEND_AWAY:
                raise BackendUnavailable(finished.error)
        self.journal.keep_soon(str(entry), dump_rollout(finished))
        self._progress.finished(entry.phase, finished.error)
        return finished

    def _recorded_calls(self, entry: EntryName) -> RecordedCalls:
        """Return the answered calls of a rollout, starting with those in the journal. Later ones are added to the
        journal."""
        parts: list[str] = []
        while (part := self.journal.kept.get(str(entry.calls(len(parts))))) is not None:
            parts.append(part)
        further = itertools.count(len(parts))
        return RecordedCalls(parts, lambda part: self.journal.keep_soon(str(entry.calls(next(further))), part))

    async def scored(
        self,
        purpose: Purpose,
        scenarios: Sequence[Scenario],
        rollouts: Sequence[Rollout],
        numbers: Sequence[int] | None = None,
    ) -> tuple[Group, ...]:
        """Score the rollouts, which are ordered by scenario, with the same number for each. `numbers` are those of the
        groups, if they are only a part of those for this purpose."""
        size = len(rollouts) // max(1, len(scenarios))
        groups = [rollouts[number * size : (number + 1) * size] for number in range(len(scenarios))]
        if scenarios:
            self._run.progress(IterationProgress(self.journal.iteration, Phase.JUDGE, 0, len(scenarios)))
        judgements = await self._judgements(purpose, scenarios, groups, numbers)
        environment = self._run.environment
        return tuple(
            [
                await off_loop(environment, assign_rewards, environment, scenario, group, judgement)
                for scenario, group, judgement in zip(scenarios, groups, judgements, strict=True)
            ]
        )

    async def _judgements(
        self,
        purpose: Purpose,
        scenarios: Sequence[Scenario],
        groups: Sequence[Sequence[Rollout]],
        numbers: Sequence[int] | None,
    ) -> list[Judgement]:
        """Return the verdicts on each group. They are made once, because a model as a judge could decide differently
        next time. Verdicts on a part of the groups are saved group by group."""
        entry, is_part = str(EntryName("judge", purpose)), numbers is not None
        if entry in self.journal.kept and not is_part:
            judgements = load_judgements(self.journal.kept[entry])
            if len(judgements) == len(groups):  # earlier versions replaced other groups
                return judgements
        judgements = await all_of(
            *(
                self._judgement(EntryName("judge", purpose, number), scenario, group, keep=is_part)
                for number, scenario, group in zip(numbers or range(len(groups)), scenarios, groups, strict=True)
            )
        )
        if not is_part:
            self.journal.keep_soon(entry, dump_judgements(judgements))  # written together with the intent to train
        return judgements

    async def _judgement(
        self, entry: EntryName, scenario: Scenario, group: Sequence[Rollout], *, keep: bool
    ) -> Judgement:
        """Return the verdicts on one group. They are saved if the judge called a model, and with `keep` always."""
        if (saved := self.journal.kept.get(str(entry))) is not None:
            [judgement] = load_judgements(saved)
            return judgement
        estimates = self._run.estimates
        async with self._budget.reserve(entry.phase, lambda: estimates.judging) as reservation:
            judgement = await judge_group(self._run.judge, scenario, group)
            estimates.saw_judgement(judgement)
            reservation.spend(usage_of_calls(judgement.calls))
        if keep or judgement.calls:
            self.journal.keep_soon(str(entry), dump_judgements([judgement]))
        return judgement
