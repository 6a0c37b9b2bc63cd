"""The learn loop. Each iteration rolls out, judges, trains, reflects and evaluates. The first iterations of some runs
train on a record instead: on demonstrations, or on answers that were served.

The loop has no durable state and does not depend on HTTP or a database. The caller consumes it under
`contextlib.aclosing` and saves what it yields. Cancelling the consumer stops all rollouts.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from learnloop_service.environment.base import Environment, Json, Reflective
from learnloop_service.environment.trace import span
from learnloop_service.judges.base import Judge
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    Policy,
    RestoreRequest,
    RestoringPolicy,
    StepRequest,
    SupervisedRequest,
    TrainOutcome,
)
from learnloop_service.training.budget import BudgetReached, Estimates, RunBudget, Unlimited
from learnloop_service.training.collapse import OUTDATED, CollapseWatch
from learnloop_service.training.diagnosis.collapses import rolled_out_groups
from learnloop_service.training.diagnosis.count_group import facts_of_group
from learnloop_service.training.diagnosis.facts import GroupFacts
from learnloop_service.training.diagnosis.scenarios import is_learned
from learnloop_service.training.difficulty import reward_range
from learnloop_service.training.inclusion import taught_nothing
from learnloop_service.training.journal import HeldJournal, IterationJournal, Journal, NoJournal
from learnloop_service.training.loop.collector import RolloutCollector, RunContext
from learnloop_service.training.loop.evaluation import Evaluator
from learnloop_service.training.loop.iteration_record import IterationRecord
from learnloop_service.training.loop.rollout_gate import RolloutGate
from learnloop_service.training.loop.rollout_progress import Report
from learnloop_service.training.loop.rollout_schedule import JudgedRollouts, RolloutSchedule
from learnloop_service.training.loop.rollout_tasks import RolloutTask, seed_of
from learnloop_service.training.loop.run_record import RunRecord
from learnloop_service.training.loop.train_step import TrainStep, request_for
from learnloop_service.training.loop.warm_start import Demonstrations, record_of
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.rollout import Player
from learnloop_service.training.scoring import rewarded
from learnloop_service.training.stopping import Stopping
from learnloop_service.training.types import (
    Group,
    IterationProgress,
    IterationReflection,
    IterationResult,
    Resume,
    RunConfig,
    Snapshot,
)


class CheckpointLost(Exception):
    """The checkpoint of a saved iteration no longer exists, so the run cannot be resumed from it."""


async def learn_loop(
    config: RunConfig,
    environment: Environment,
    judge: Judge,
    policy: Policy,
    *,
    progress: Report = lambda _: None,
    journal: Journal | None = None,
    resume: Resume | None = None,
    budget: RunBudget | None = None,
    agent: Player | None = None,
    prompt: Prompt | None = None,
    now: Callable[[], float] = time.time,
    demonstrations: Demonstrations | RunRecord = (),
    another_environment: Callable[[], Environment] | None = None,
    stopping: Stopping | None = None,
) -> AsyncGenerator[IterationResult, None]:
    """Run the loop, yielding the baseline (iteration 0) and then each iteration when it is done.

    With `resume`, continue where an earlier loop stopped. Work on unfinished iterations that is in the journal is not
    repeated. On a deterministic backend, the same config gives the same results.
    `agent` is an agent that owns its loop. `prompt` replaces texts of the environment in all rollouts. `now` timestamps
    them, in seconds since the epoch. A warm start trains on the `demonstrations`, or on that number by the
    environment's oracle, and a run without rollouts on a record. With `pipeline`, rollouts can use the earlier state of
    a reflective environment, and `another_environment` creates an instance for them.

    Raises BudgetReached, CheckpointLost, and the backend's errors when training fails; RolloutsFailed or NothingScored
    only if all rollouts or verdicts fail.
    """
    await asyncio.to_thread(import_art)
    held_journal, budget = HeldJournal(journal or NoJournal()), budget or Unlimited()
    estimates, gate = Estimates(config, environment, budget, prompt), RolloutGate(config.concurrency)
    run = RunContext(config, environment, judge, held_journal, progress, budget, estimates, gate, now, agent, prompt)
    first = resume.iteration if resume else 1
    schedule = RolloutSchedule(run, policy, another_environment, first)
    loop = _Loop(run, policy, schedule, demonstrations, held_journal, stopping or Stopping(config))
    try:
        if resume is None:
            yield await loop.baseline()
        else:
            await loop.resume(resume)
        for iteration in range(first, config.all_iterations + 1):
            if loop.has_ended:
                return
            yield await loop.take(iteration)
    except BudgetReached:
        await schedule.finish()
        raise
    finally:
        await asyncio.gather(loop.stop(), schedule.stop())


class _Loop:
    """The iterations of one run. Between iterations it carries the policy's step; its parts carry the rest of the
    state."""

    def __init__(
        self,
        run: RunContext,
        policy: Policy,
        schedule: RolloutSchedule,
        demonstrations: Demonstrations | RunRecord,
        journal: HeldJournal,
        stopping: Stopping,
    ) -> None:
        self._run = run
        self._journal = journal
        self._training: asyncio.Task[TrainOutcome] | None = None
        """The training of the iteration, which ends when its checkpoint is durable."""
        self._environment = run.environment
        self._policy = policy
        self._schedule = schedule
        self._evaluator = Evaluator(run, policy)
        self._demonstrations = demonstrations
        self._record: asyncio.Task[RunRecord] | None = None
        self._step = 0
        self._watch = CollapseWatch()
        self._stopping, self._stops = stopping, False

    @property
    def has_ended(self) -> bool:
        """Whether the run ends here, by its request: a rule of `stop_when` holds, or little is left to learn by the
        rule of the diagnosis `too_easy`."""
        config = self._run.config
        return self._stops or (config.end_when_learned and is_learned(self._run.groups, config.all_iterations))

    async def resume(self, where: Resume) -> None:
        """Restore the state after the previous iteration. Raises CheckpointLost."""
        step = where.snapshot.step
        if (now := await self._policy.step()) < step:
            raise CheckpointLost(
                f"the policy's checkpoint {step}, which iteration {where.iteration - 1} led to, is lost or "
                f"damaged, and the newest whole one is {now}: put it back and retry the run, or fork it at step {now}"
            )
        self._step = step
        self._evaluator.resume(where)
        self._watch = CollapseWatch.of(where.rolled_out)
        self._run.groups.update(where.groups)
        self._stops = self._stopping.reason is not None
        if self.has_ended:
            return
        state = where.snapshot.environment_state
        if isinstance(self._environment, Reflective) and state is not None:
            self._environment.restore(state)
        for iteration, snapshot in {**where.earlier, where.iteration - 1: where.snapshot}.items():
            self._schedule.begin_after(iteration, snapshot)

    async def baseline(self) -> IterationResult:
        """Evaluate the untrained policy on both held-out splits. Given demonstrations are counted before, because a
        run that none of them fits has nothing to learn."""
        record = IterationRecord(0)
        if self._run.config.supervised_iterations:
            self._prepare()
            if not isinstance(self._demonstrations, int):
                record.left_out = (await self._prepare()).left_out
        with span("baseline", iteration=0):
            collector = await self._run.collector(0)
            self._step = await self._policy.step()
            with record.timed(Phase.EVALUATE):
                record.evaluations = await self._evaluator.baseline(collector, self._step)
            self._stopping.add(record.point())
            with record.timed(Phase.REFLECT):
                record.reflection = await self._reflect(collector, ())
        return self._result(record)

    async def take(self, iteration: int) -> IterationResult:
        """Learn from the run's record or from rollouts, whichever the iteration is for."""
        learn = self.learn_from_record if iteration <= self._run.config.supervised_iterations else self.iterate
        with span("iteration", iteration=iteration):
            return await learn(iteration)

    async def iterate(self, iteration: int) -> IterationResult:
        """Take the iteration's judged rollouts, train on them, reflect, and evaluate if an evaluation is due."""
        record = IterationRecord(iteration)
        rollouts = await self._schedule.take(iteration)
        record.rolled_out(rollouts, self._step)
        config = self._run.config
        if (
            config.end_when_learned
            or config.scenario_sampling == "difficulty"
            or "least_spread" in config.train_options
        ):
            self._run.groups[iteration] = self._counted(rollouts.groups)
        with record.timed(Phase.TRAIN):
            record.metrics = await self._learn(rollouts)
        await self._beside_writing(record, self._look_back(record, rollouts.collector, rollouts.groups))
        return self._result(record)

    async def learn_from_record(self, iteration: int) -> IterationResult:
        """Like `iterate`, but train on what the run's record has for the iteration instead of rollouts, if anything."""
        record = IterationRecord(iteration)
        collector = await self._run.collector(iteration)
        with record.timed(Phase.TRAIN):
            await collector.admit(Phase.TRAIN)
            learns_from = await self._prepare()
            lesson = await learns_from.lesson(collector.journal, self._policy, self._step)
            record.left_out, record.metrics = lesson.left_out, lesson.metrics
            if lesson.request is not None:
                record.metrics = {**await self._train(lesson.request, collector.journal), **lesson.metrics}
            measured = await learns_from.measured(collector.journal, self._policy, self._step)
            record.metrics = {**record.metrics, **measured}
        looking_back = self._look_back(record, collector, (), learns_from.best_step(self._step))
        await self._beside_writing(record, looking_back)
        return self._result(record)

    async def stop(self) -> None:
        """Stop following the training, whose job the journal has, and preparing the demonstrations."""
        tasks = [task for task in (self._training, self._record) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _train(self, request: StepRequest, journal: IterationJournal) -> Mapping[str, float]:
        """Begin to carry out a request, and return its metrics when the weights can be sampled. In a run with a budget
        that is when the checkpoint is durable."""
        early: asyncio.Future[TrainOutcome] = asyncio.get_running_loop().create_future()
        steps = len(request.learning_rates) if isinstance(request, SupervisedRequest) else 1

        def report(finished: int, steps: int) -> None:
            self._run.progress(IterationProgress(journal.iteration, Phase.TRAIN, finished, steps))

        def can_be_sampled(outcome: TrainOutcome) -> None:
            if not early.done():
                self._journal.hold()
                early.set_result(outcome)

        async def durable() -> TrainOutcome:
            trained = None if self._run.budget.limited else can_be_sampled
            outcome = await TrainStep(self._policy, journal, self._step, trained).take(request, report)
            if early.done() and early.result() != outcome:
                raise BackendUnavailable(f"step {outcome.step} was trained again: what was sampled before is given up")
            self._journal.release()
            return outcome

        report(0, steps)
        self._training = asyncio.create_task(durable())
        await asyncio.wait((early, self._training), return_when=asyncio.FIRST_COMPLETED)
        outcome = self._training.result() if self._training.done() else early.result()
        self._step = outcome.step
        report(steps, steps)
        return outcome.metrics

    async def _beside_writing(self, record: IterationRecord, work: Coroutine[Any, Any, None]) -> None:
        """Do the rest of the iteration while the checkpoint of its training is written, and return when both are done.

        If the checkpoint is lost, so is the work that used its weights: the training's error is raised.
        """
        working = asyncio.create_task(work)
        try:
            if self._training is not None:
                await asyncio.wait((self._training, working), return_when=asyncio.FIRST_COMPLETED)
                with record.timed(Phase.TRAIN):
                    await self._training
                self._training = None
            await working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _look_back(
        self, record: IterationRecord, collector: RolloutCollector, groups: Sequence[Group], best: int | None = None
    ) -> None:
        """Reflect, and evaluate if an evaluation is due. Without `best`, evaluations decide which step is the best."""
        with record.timed(Phase.REFLECT):
            record.reflection = await self._reflect(collector, groups)
        with record.timed(Phase.EVALUATE):
            record.evaluations = await self._evaluator.after(
                record.iteration, collector, self._step, ends=self.has_ended, best=best
            )
            self._stopping.add(record.point())
            if not self.has_ended and self._stopping.reason is not None:
                self._stops = True
                record.evaluations = [*record.evaluations, *await self._evaluator.test(collector)]

    async def _learn(self, rollouts: JudgedRollouts) -> Mapping[str, float]:
        """Train on the groups that have a training signal, if any. Go back instead if the rollouts show that a step
        broke the policy, where that is asked for; from then on, the learning rate is half of what it was. Rollouts of
        a policy that the run has left teach nothing."""
        watch, groups = self._watch, [group for group in rollouts.groups if group.skipped is None]
        if watch.is_outdated(rollouts.step):
            return {OUTDATED: float(sum(len(group.rollouts) for group in rollouts.groups))}
        good_step = self._good_step(rollouts)
        if good_step is None and not groups:
            return {}
        journal, config = rollouts.collector.journal, self._run.config
        if good_step is not None:
            metrics = await self._train(RestoreRequest(good_step), journal)
            watch.went_back(self._step)
            return metrics
        options = config.train_options
        if (share := options.get("least_spread")) is not None:
            low, high = reward_range(self._run.groups)
            options = {**options, "least_spread": share * (high - low)}
        rate = config.learning_rate * 0.5**watch.restored
        slower = replace(config, learning_rate=rate, train_options=options)
        return await self._train(request_for(slower, groups, journal.iteration, self._step), journal)

    def _good_step(self, rollouts: JudgedRollouts) -> int | None:
        """Return the step to go back to, if these rollouts show that a later one broke the policy."""
        config = self._run.config
        if config.on_collapse != "step_back" or not isinstance(self._policy, RestoringPolicy):
            return None
        groups = self._counted(rollouts.scheduled)
        collapse = self._watch.add(rolled_out_groups(rollouts.collector.journal.iteration, rollouts.step, groups))
        return None if collapse is None else collapse.good_step

    def _counted(self, groups: Sequence[Group]) -> tuple[GroupFacts, ...]:
        limit = self._run.config.max_completion_tokens
        return tuple(facts_of_group(group, limit, {}) for group in groups)

    def _prepare(self) -> "asyncio.Task[RunRecord]":
        """Begin to prepare the run's record, unless that has begun: demonstrations of an oracle take seconds."""
        if self._record is None:
            run = self._run
            preparing = record_of(run.config, run.environment, self._demonstrations, self._policy, run.prompt)
            self._record = asyncio.create_task(preparing)
        return self._record

    async def _reflect(self, collector: RolloutCollector, groups: Sequence[Group]) -> IterationReflection | None:
        """Let the environment learn from the iteration. The policy and the environment are then final, so the rollouts
        that use them begin. If the environment learns, one more rollout shows what the new policy does in it."""
        environment, iteration = self._environment, collector.journal.iteration
        if not isinstance(environment, Reflective):
            self._begin_after(iteration, groups)
            return None
        with span("reflect", phase=Phase.REFLECT, step=self._step):
            seed, endpoint = self._run.config.seed, self._policy.endpoint(self._step)
            await off_loop(environment, environment.reflect, rewarded(groups))
            # before the state is read, because it can determine what is learned about
            scenario = await off_loop(environment, environment.showcase, seed)
            state = await off_loop(environment, environment.state)
            self._begin_after(iteration, groups, state)
            tasks = [RolloutTask(scenario, seed_of(seed, "showcase"))]
            rollouts = await collector.rollouts(Purpose.SHOWCASE, tasks, endpoint, temperature=0.0)
            [group] = await collector.scored(Purpose.SHOWCASE, [scenario], rollouts)
        return IterationReflection(state, group.rollouts[0], group.judge_calls)

    def _begin_after(self, iteration: int, groups: Sequence[Group], state: Mapping[str, Json] | None = None) -> None:
        if not self.has_ended:
            self._schedule.begin_after(iteration, Snapshot(self._step, state, taught_nothing(groups)))

    def _result(self, record: IterationRecord) -> IterationResult:
        model = self._policy.endpoint(self._step).model
        return record.result(self._step, model, self._evaluator.best_step)
