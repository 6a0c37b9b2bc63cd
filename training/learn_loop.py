"""The learn loop: roll out, judge, train, reflect, evaluate; once for each iteration. With a warm start the first
iterations train on demonstrations instead of rollouts.

It owns no state that must survive and knows no HTTP and no database: the caller consumes it under
`contextlib.aclosing` and saves what it yields. Cancelling the consumer leaves no rollout running.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Literal

from environment.base import Environment, Json, Reflective, Rewarded, Scenario
from environment.trace import span
from judges.base import Judge
from training.backends.art_import import import_art
from training.backends.base import Endpoint, Policy
from training.budget import BudgetReached, Estimates, RunBudget, Unlimited
from training.collector import (
    Report,
    RolloutCollector,
    RolloutGate,
    RolloutTask,
    RunContext,
    all_of,
    rollout_tasks,
    seed_of,
)
from training.journal import IterationJournal, Journal, NoJournal
from training.no_signal import no_signal_of
from training.phases import Phase, Purpose
from training.pipeline import RolledOut, RolloutsAhead, sampled_after, sampled_during
from training.rollout.rollout import Player, failed, total
from training.scoring import share, success_rate, summarise
from training.train_step import TrainStep
from training.types import (
    Evaluation,
    Group,
    IterationResult,
    Progress,
    Reflection,
    Resume,
    RunConfig,
    ScoredRollout,
    Snapshot,
    Timing,
)
from training.warm_start import WarmStart, oracle_demonstrations

Demonstrations = int | Sequence[Mapping[str, Json]]
"""Conversations in OpenAI's form for fine-tuning; or a number of those that the environment's oracle has."""

Drawn = tuple[RolloutCollector, Sequence[Scenario]]
"""What makes the rollouts of an iteration, and of which scenarios."""


class NothingScored(Exception):
    """The judge scored no rollout of an evaluation: any figure would be invented."""


class CheckpointLost(Exception):
    """The checkpoint that a saved iteration led to is gone, so that the run cannot be resumed from it."""


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
    now: Callable[[], float] = time.time,
    demonstrations: Demonstrations = (),
    another_environment: Callable[[], Environment] | None = None,
) -> AsyncGenerator[IterationResult, None]:
    """Run the loop, yielding the baseline (iteration 0) and then each iteration as it is done.

    With `resume` it continues where an earlier one stopped, and what the journal has of that iteration is not done
    again. Raises CheckpointLost if the policy's checkpoint is gone.

    The same config on a deterministic backend gives the same results. Raises what the backend raises when
    training fails. Rollouts and judges that fail are data, but where all do, RolloutsFailed or NothingScored is raised.
    BudgetReached is raised where the next call does not fit `budget`; by default there is no limit. `agent` is
    one that owns its loop; by default the built-in loop makes the rollouts. `now` dates them, in seconds since the
    epoch. A warm start trains on the `demonstrations`, or on so many of the environment's oracle.

    Where rollouts run ahead (`pipeline`), a reflective environment goes on learning while they are made in it as it was
    before: `another_environment` makes further ones like it.
    """
    await asyncio.to_thread(import_art)
    journal, budget = journal or NoJournal(), budget or Unlimited()
    estimates, gate = Estimates(config, environment, budget), RolloutGate(config.concurrency)
    context = RunContext(config, environment, judge, journal, progress, budget, estimates, gate, now, agent)
    loop = _Loop(context, policy, another_environment)
    try:
        if resume is None:
            with span("baseline", iteration=0):
                result = await loop.baseline()
            yield result
        else:
            await loop.resume(resume)
        first = resume.iteration if resume else 1
        if config.warm_start is not None and first <= config.supervised_iterations:
            if isinstance(demonstrations, int):
                demonstrations = await oracle_demonstrations(environment, demonstrations, config.seed)
            loop.warm_start = WarmStart(config.warm_start, config.seed, demonstrations)
        for iteration in range(first, config.all_iterations + 1):
            with span("iteration", iteration=iteration):
                result = await loop.iterate(iteration)
            yield result
    except BudgetReached:
        await loop.finish()
        raise
    finally:
        await loop.stop()


class _Loop:
    """What one run of the loop carries from iteration to iteration: the policy's step and the best one, and rollouts
    that run ahead."""

    def __init__(
        self, run: RunContext, policy: Policy, another_environment: Callable[[], Environment] | None = None
    ) -> None:
        self._run = run
        self._config = run.config
        self._environment = run.environment
        self._policy = policy
        self._step = 0
        self._best_step = 0
        self._best = (-1.0, 0.0)
        self._another_environment = another_environment
        self._context = copy_context()
        """Outside of any iteration's span."""
        self._ahead: dict[int, RolloutsAhead] = {}
        self._drawn: dict[int, asyncio.Task[Drawn]] = {}
        self._after: dict[int, Snapshot] = {}
        """What rollouts can still be sampled from, by the iteration that led to it."""
        self.warm_start: WarmStart | None = None
        """Set for as long as iterations train on demonstrations."""

    async def resume(self, where: Resume) -> None:
        """Restore the state after the previous iteration. Raises CheckpointLost."""
        if (now := await self._policy.step()) < where.step:
            raise CheckpointLost(
                f"the policy's checkpoint {where.step}, which iteration {where.iteration - 1} led to, is lost or "
                f"damaged, and the newest whole one is {now}: put it back and retry the run, or fork it at step {now}"
            )
        self._step, self._best_step = where.step, where.best_step
        self._best = (where.best_success, where.best_reward)
        self._after = {**where.earlier, where.iteration - 1: Snapshot(where.step, where.environment_state)}
        if isinstance(self._environment, Reflective) and where.environment_state is not None:
            self._environment.restore(where.environment_state)

    async def baseline(self) -> IterationResult:
        """Evaluate the policy as it came, on both held-out splits."""
        clock = time.monotonic()
        seconds: dict[str, float] = {}
        collector = await self._run.collector(0)
        self._step = self._best_step = await self._policy.step()
        with _timed(seconds, "evaluate_s"):
            evaluations = await self._evaluate_both(collector)
        with _timed(seconds, "reflect_s"):
            reflection = await self._reflect(collector, ())
        self._remember(0, reflection)
        self._begin_next(0, ())
        return self._result(0, (), {}, evaluations, reflection, seconds, clock)

    async def iterate(self, iteration: int) -> IterationResult:
        """Roll out, judge, train, reflect, and evaluate where an evaluation is due."""
        clock = time.monotonic()
        seconds: dict[str, float] = {}
        made: RolledOut | None = None
        groups: tuple[Group, ...] = ()
        before = self._step
        if iteration <= self._config.supervised_iterations:
            collector = await self._run.collector(iteration)
            with _timed(seconds, "train_s"):
                metrics = await self._imitate(collector)
        else:
            made = await self._rolled_out(iteration)
            collector, groups = made.collector.within(self._run), made.groups
            seconds |= made.seconds(clock)
            with _timed(seconds, "train_s"):
                metrics = await self._train_on(collector.journal, [group for group in groups if group.skipped is None])
        with _timed(seconds, "reflect_s"):
            reflection = await self._reflect(collector, groups)
        evaluations: list[Evaluation] = []
        last = iteration == self._config.all_iterations
        ends_phase = last or iteration == self._config.supervised_iterations
        with _timed(seconds, "evaluate_s"):
            if ends_phase or iteration % self._config.evaluation.every == 0 or not self._config.evaluation.scenarios:
                evaluations += await self._validate(collector)
            if last:
                evaluations += await self._evaluate(collector, "test", self._best_step)
        self._remember(iteration, reflection)
        self._begin_next(iteration, groups)
        result = self._result(iteration, groups, metrics, evaluations, reflection, seconds, clock)
        if made is None:
            return result
        return replace(result, sampled_step=made.step, staleness=before - made.step)

    async def _rolled_out(self, iteration: int) -> RolledOut:
        """The iteration's rollouts, those that ran ahead too; the rollouts of later iterations begin, if they may."""
        if self._config.pipeline.max_staleness > 0:
            for each in sampled_during(self._config, iteration):
                if each not in self._ahead:
                    snapshot = self._after[sampled_after(self._config, each)]
                    self._begin_ahead(each, partial(self._roll_out_as_of, each, snapshot))
        elif iteration not in self._ahead:
            return await self._roll_out(iteration, self._run, self._step)
        made = await self._ahead[iteration].take()
        del self._ahead[iteration]
        return made

    def _begin_ahead(self, iteration: int, roll_out: Callable[[RolloutsAhead], Awaitable[RolledOut]]) -> None:
        self._ahead[iteration] = RolloutsAhead(roll_out, self._run.progress, self._context.copy())

    async def _roll_out_as_of(self, iteration: int, snapshot: Snapshot, ahead: RolloutsAhead) -> RolledOut:
        """Roll out with the policy and in the environment as they were then."""
        with (
            span("rollouts ahead", iteration=iteration, step=snapshot.step),
            self._environment_as_of(snapshot) as environment,
        ):
            run = replace(self._run, environment=environment, progress=ahead.report)
            return await self._roll_out(iteration, run, snapshot.step)

    def _begin_next(self, iteration: int, groups: Sequence[Group]) -> None:
        """Let the rollouts of the next iteration begin beside the showcase, which alone would leave the engine to one
        conversation, or else beside the saving of this one, which would leave it to none: policy and environment stay
        as they are until the next training.

        Not where the run may end between the two: by its budget, or because too many iterations taught nothing.
        """
        following = iteration + 1
        if following in self._ahead:
            return
        if self._config.pipeline.max_staleness > 0 or not sampled_during(self._config, following):
            return
        if not self._run.budget.limited and no_signal_of(groups) is None:
            self._begin_ahead(following, partial(self._roll_out_next, following, self._step))

    async def _roll_out_next(self, iteration: int, step: int, ahead: RolloutsAhead) -> RolledOut:
        """Roll out with the policy of that step, which is the newest; judge when it is the iteration's turn, so that
        verdicts know what was said of the iteration before."""
        with span("rollouts ahead", iteration=iteration, step=step):
            return await self._roll_out(iteration, replace(self._run, progress=ahead.report), step, ahead.turn)

    @contextmanager
    def _environment_as_of(self, snapshot: Snapshot) -> Iterator[Environment]:
        if not isinstance(self._environment, Reflective):
            yield self._environment
            return
        if self._another_environment is None:
            raise ValueError(f"rollouts cannot run ahead in {self._environment.name}: it learns, and there is one only")
        with closing(self._another_environment()) as environment:
            if isinstance(environment, Reflective) and snapshot.environment_state is not None:
                environment.restore(snapshot.environment_state)
            yield environment

    async def _roll_out(
        self, iteration: int, run: RunContext, step: int, may_judge: asyncio.Event | None = None
    ) -> RolledOut:
        """Roll out each scenario of the iteration several times and score the rollouts, once that is allowed."""
        config = self._config
        drawn = self._drawn.pop(iteration, None)
        collector, scenarios = await (drawn or self._draw(iteration, run))
        collector = collector.within(run)
        began = time.monotonic()
        tasks = rollout_tasks(config.seed, scenarios, config.rollouts_per_group, "train", iteration)
        with span("rollouts", phase=Phase.ROLLOUT, count=len(tasks)):
            rollouts = await collector.rollouts(Purpose.TRAIN, tasks, self._policy.endpoint(step), config.temperature)
        rolled_out = time.monotonic()
        if may_judge is not None:
            await may_judge.wait()
        with span("verdicts", phase=Phase.JUDGE, groups=len(scenarios)):
            groups = await collector.scored(Purpose.TRAIN, scenarios, rollouts)
        return RolledOut(collector, step, groups, began, rolled_out, time.monotonic())

    async def _draw(self, iteration: int, run: RunContext) -> Drawn:
        """What the rollouts of the iteration begin with."""
        config = self._config
        collector = await run.collector(iteration)
        start = (iteration - config.supervised_iterations - 1) * config.groups_per_iteration
        return collector, run.environment.scenarios("train", config.groups_per_iteration, config.seed, start)

    def _draw_beside(self, iteration: int) -> None:
        """Draw for that iteration beside what goes on now, unless that can change what is drawn, or the run may end
        before."""
        if self._config.pipeline.max_staleness > 0 or not sampled_during(self._config, iteration):
            return
        if not isinstance(self._environment, Reflective) and not self._run.budget.limited:
            self._drawn[iteration] = asyncio.create_task(self._draw(iteration, self._run))

    async def finish(self) -> None:
        """Wait for the rollouts ahead that have begun: the journal keeps them, so that a resumed run does not make them
        again. Where the budget is reached no others begin."""
        await asyncio.gather(*(each.ended() for each in self._ahead.values()))

    async def stop(self) -> None:
        """Stop what runs ahead. Rollouts that are cut off keep the answers of their model in the journal."""
        await asyncio.gather(*(each.stop() for each in self._ahead.values()))
        for drawn in self._drawn.values():
            drawn.cancel()
        await asyncio.gather(*self._drawn.values(), return_exceptions=True)

    async def _imitate(self, collector: RolloutCollector) -> dict[str, float]:
        """Train on the iteration's demonstrations."""
        assert self.warm_start is not None
        await collector.admit(Phase.TRAIN)
        iteration = collector.journal.iteration
        request = self.warm_start.request(iteration, self._step)

        def report(done: int, steps: int) -> None:
            self._run.progress(Progress(iteration, Phase.TRAIN, done, steps))

        report(0, len(request.learning_rates))
        outcome = await TrainStep(self._config, self._policy, collector.journal, self._step).imitate(request, report)
        self._step = outcome.step
        return {**outcome.metrics, "demonstrations": float(len(request.demonstrations))}

    async def _train_on(self, journal: IterationJournal, groups: Sequence[Group]) -> dict[str, float]:
        """Train on the groups that teach something; nothing happens if there is none."""
        if not groups:
            return {}
        self._run.progress(Progress(journal.iteration, Phase.TRAIN, 0, 1))
        following = partial(self._draw_beside, journal.iteration + 1)
        outcome = await TrainStep(self._config, self._policy, journal, self._step, following).take(groups)
        self._step = outcome.step
        self._run.progress(Progress(journal.iteration, Phase.TRAIN, 1, 1))
        return dict(outcome.metrics)

    def _endpoint(self) -> Endpoint:
        return self._policy.endpoint(self._step)

    async def _reflect(self, collector: RolloutCollector, groups: Sequence[Group]) -> Reflection | None:
        """Let the environment learn from the iteration, then show what the new policy does in it."""
        environment = self._environment
        if not isinstance(environment, Reflective):
            return None
        with span("reflect", phase=Phase.REFLECT, step=self._step):
            environment.reflect(rewarded(groups))
            self._begin_next(collector.journal.iteration, groups)
            scenario = environment.showcase(self._config.seed)
            tasks = [RolloutTask(scenario, seed_of(self._config.seed, "showcase"))]
            rollouts = await collector.rollouts(Purpose.SHOWCASE, tasks, self._endpoint(), temperature=0.0)
            [group] = await collector.scored(Purpose.SHOWCASE, [scenario], rollouts)
        return Reflection(environment.state(), group.rollouts[0], group.judge_calls)

    async def _evaluate_both(self, collector: RolloutCollector) -> list[Evaluation]:
        """Evaluate on the validation split and, once its rollouts are under way, on the test split: the engine has
        their requests while further scenarios and their episodes are made."""
        begun = asyncio.Event()

        async def validate() -> list[Evaluation]:
            try:
                return await self._validate(collector, begun)
            finally:
                begun.set()

        async def test() -> list[Evaluation]:
            await begun.wait()
            self._draw_beside(1)
            return await self._evaluate(collector, "test", self._step)

        return [evaluation for split in await all_of(validate(), test()) for evaluation in split]

    async def _validate(self, collector: RolloutCollector, begun: asyncio.Event | None = None) -> list[Evaluation]:
        """Evaluate the newest checkpoint on the validation split; it becomes the best if it is."""
        evaluations = await self._evaluate(collector, "validation", self._step, begun)
        if not evaluations:
            self._best_step = self._step
        for evaluation in evaluations:
            figures = (evaluation.success, evaluation.mean_reward)
            if evaluation.mode == "sampled" and figures > self._best:
                self._best, self._best_step = figures, self._step
        return evaluations

    async def _evaluate(
        self,
        collector: RolloutCollector,
        split: Literal["validation", "test"],
        step: int,
        begun: asyncio.Event | None = None,
    ) -> list[Evaluation]:
        """Sampled and greedy figures of one checkpoint, unless the run wants none. The same scenarios and seeds each
        time.

        Both are made at the same time, so that the engine decodes large batches; a rollout depends on no other. `begun`
        is set when the sampled ones, which are not fewer, are under way.
        """
        evaluation = self._config.evaluation
        count = evaluation.test_scenarios if split == "test" else evaluation.scenarios
        if count == 0:
            return []
        scenarios = self._environment.scenarios(split, count, self._config.seed)
        return await all_of(
            self._evaluate_mode(collector, split, "sampled", step, scenarios, evaluation.samples, begun),
            self._evaluate_mode(collector, split, "greedy", step, scenarios, 1),
        )

    async def _evaluate_mode(
        self,
        collector: RolloutCollector,
        split: Literal["validation", "test"],
        mode: Literal["sampled", "greedy"],
        step: int,
        scenarios: Sequence[Scenario],
        samples: int,
        begun: asyncio.Event | None = None,
    ) -> Evaluation:
        tasks = rollout_tasks(self._config.seed, scenarios, samples, split)
        temperature = self._config.temperature if mode == "sampled" else 0.0
        purpose = Purpose(f"{split}.{mode}")
        with span("evaluate", phase=Phase.EVALUATE, split=split, mode=mode, step=step):
            rollouts = await collector.rollouts(purpose, tasks, self._policy.endpoint(step), temperature, begun)
            groups = await collector.scored(purpose, scenarios, rollouts)
        scored = [rollout for group in groups for rollout in group.rollouts]
        if all(rollout.reward is None for rollout in scored):
            raise NothingScored(f"the judge scored no rollout: {scored[0].score.explanation}")
        return Evaluation(
            split=split,
            mode=mode,
            step=step,
            scenarios=len(scenarios),
            success=success_rate(scored) or 0.0,
            mean_reward=summarise(scored).mean or 0.0,
            malformed=share(map(_malformed, scored)) or 0.0,
            turns=total(rollouts, "turns") / len(rollouts),
            rollouts=tuple(scored),
            judge_calls=tuple(call for group in groups for call in group.judge_calls),
        )

    def _remember(self, iteration: int, reflection: Reflection | None) -> None:
        """What later rollouts are sampled from, as it is after the iteration; and forget what no rollout needs."""
        needed = sampled_after(self._config, iteration + 1)
        self._after = {number: each for number, each in self._after.items() if number >= needed}
        self._after[iteration] = Snapshot(self._step, None if reflection is None else reflection.state)

    def _result(
        self,
        iteration: int,
        groups: tuple[Group, ...],
        metrics: dict[str, float],
        evaluations: list[Evaluation],
        reflection: Reflection | None,
        seconds: dict[str, float],
        clock: float,
    ) -> IterationResult:
        scored = [rollout for group in groups for rollout in group.rollouts]
        rollouts = [r.rollout for r in scored] + [r.rollout for e in evaluations for r in e.rollouts]
        if reflection is not None:
            rollouts.append(reflection.showcase.rollout)
        return IterationResult(
            iteration=iteration,
            step=self._step,
            model=self._endpoint().model,
            groups=groups,
            rewards=summarise(scored),
            success=success_rate(scored),
            malformed=share(map(_malformed, scored)),
            failed_rollouts=failed(rollouts),
            skipped_groups=Counter(group.skipped for group in groups if group.skipped),
            train_metrics=metrics,
            evaluations=tuple(evaluations),
            best_step=self._best_step,
            timing=Timing(
                **seconds,
                total_s=time.monotonic() - clock,
                prompt_tokens=int(total(rollouts, "prompt_tokens")),
                completion_tokens=int(total(rollouts, "completion_tokens")),
            ),
            reflection=reflection,
        )


def rewarded(groups: Sequence[Group]) -> list[Rewarded]:
    """What a reflective environment sees of an iteration, in the order in which it is saved."""
    return [
        Rewarded(group.scenario, scored.rollout.outcome, scored.reward)
        for group in groups
        for scored in group.rollouts
        if scored.reward is not None
    ]


def _malformed(rollout: ScoredRollout) -> bool:
    return rollout.rollout.outcome.get("finish") == "malformed"


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Note the seconds that the block takes as `seconds[phase]`."""
    clock = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - clock
