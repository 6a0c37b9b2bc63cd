"""When the rollouts of each iteration begin.

They begin as soon as their policy and environment are final. With `max_staleness` n, the rollouts of iteration i use
the policy and environment that result from iteration i - 1 - n. They begin when that iteration has trained and the
environment has learned from it, and run concurrently with the rest of it and with the n iterations in between.

The lag is fixed. Sampling each rollout from the newest policy at its start would be slightly fresher, but the result of
a run would depend on timing: a run that was killed and taken over would end with other weights, and no result could be
reproduced. For the same reason, a conversation keeps its policy to the end.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from itertools import chain

from learnloop_service.environment.base import Environment, Reflective, Scenario
from learnloop_service.environment.scenario_order import different
from learnloop_service.environment.trace import span
from learnloop_service.training.backends.base import Policy
from learnloop_service.training.difficulty import MOST_SCENARIOS, Draw, draw_by_difficulty
from learnloop_service.training.inclusion import included, others
from learnloop_service.training.loop.collector import RolloutCollector, RunContext
from learnloop_service.training.loop.rollout_tasks import rollout_tasks
from learnloop_service.training.loop.task_errors import all_of
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.types import Group, IterationProgress, Rollout, RunConfig, Snapshot


def sampled_after(config: RunConfig, iteration: int) -> int:
    """Return the iteration whose resulting policy samples the rollouts of `iteration`."""
    return max(config.supervised_iterations, iteration - 1 - config.pipeline.max_staleness)


def sampled_with(config: RunConfig, iteration: int) -> list[int]:
    """Return the iterations whose rollouts are sampled by the policy that results from `iteration`."""
    last = min(iteration + 1 + config.pipeline.max_staleness, config.all_iterations)
    return [later for later in range(iteration + 1, last + 1) if sampled_after(config, later) == iteration]


@dataclass(frozen=True, slots=True)
class JudgedRollouts:
    """The judged rollouts of an iteration, with the times of their phases by the monotonic clock."""

    collector: RolloutCollector
    """Collector for the iteration's other rollouts."""
    step: int
    """Step of the policy that sampled them."""
    scheduled: tuple[Group, ...]
    """The groups that the schedule drew. Figures are about these (training/inclusion.py)."""
    replacements: tuple[Group, ...]
    """The groups that replace earlier ones, which taught nothing."""
    began: float
    rolled_out: float
    judged: float

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups to train on."""
        return self.scheduled + self.replacements

    def seconds(self, since: float) -> dict[str, float]:
        """Return how long an iteration that began at `since` waited for each phase, and how far the rollouts ran
        ahead."""
        return {
            "ahead_s": max(0.0, since - self.began),
            "rollout_s": max(0.0, self.rolled_out - max(since, self.began)),
            "judge_s": max(0.0, self.judged - max(since, self.rolled_out)),
        }


class RolloutSchedule:
    """Begins the rollouts of each iteration, and returns them when it is the iteration's turn.

    In a run with a budget or `stop_when`, and without staleness, they begin only at that time, so that nothing is spent
    on an iteration while the previous one can still need the budget, or end the run.
    """

    def __init__(
        self, run: RunContext, policy: Policy, another_environment: Callable[[], Environment] | None, first: int
    ) -> None:
        """`first` is the first iteration to run."""
        self._first = first
        self._run = run
        self._policy = policy
        self._another_environment = another_environment
        can_end = run.budget.limited or run.config.stop_when is not None
        self._ahead = run.config.pipeline.max_staleness > 0 or not can_end
        self._context = copy_context()
        """Context without an iteration's span; rollouts that run ahead start in it."""
        self._rollouts: dict[int, _IterationRollouts] = {}

    def begin_after(self, iteration: int, snapshot: Snapshot) -> None:
        """Begin the rollouts that use the policy and environment that result from `iteration`."""
        for later in sampled_with(self._run.config, iteration):
            if later >= self._first:
                rollouts = _IterationRollouts(later, snapshot, self._run, self._policy, self._another_environment)
                self._rollouts[later] = rollouts
                if self._ahead:
                    rollouts.begin(self._context.copy())

    async def take(self, iteration: int) -> JudgedRollouts:
        """Wait for the iteration's rollouts, which report progress from now on. Raises the error that made them
        fail."""
        judged = await self._rollouts[iteration].take()
        del self._rollouts[iteration]
        return judged

    async def finish(self) -> None:
        """Wait for the rollouts that have begun, so that the journal has them if the run is resumed. No others begin
        once the budget is reached."""
        await asyncio.gather(*(rollouts.ended() for rollouts in self._rollouts.values()))

    async def stop(self) -> None:
        """Stop the rollouts that run ahead. The journal keeps the model's answers in unfinished ones."""
        await asyncio.gather(*(rollouts.stop() for rollouts in self._rollouts.values()))


class _IterationRollouts:
    """The rollouts of one iteration and their verdicts, made in a task. They report neither progress nor failure until
    it is their iteration's turn."""

    def __init__(
        self,
        iteration: int,
        snapshot: Snapshot,
        run: RunContext,
        policy: Policy,
        another_environment: Callable[[], Environment] | None,
    ) -> None:
        self._iteration = iteration
        self._snapshot = snapshot
        self._run = run
        self._policy = policy
        self._another_environment = another_environment
        self._stale = run.config.pipeline.max_staleness > 0
        self._turn = asyncio.Event()
        self._last: IterationProgress | None = None
        self._task: asyncio.Task[JudgedRollouts] | None = None

    def begin(self, context: Context) -> None:
        """Begin ahead of the iteration, in `context`."""

        async def ahead() -> JudgedRollouts:
            with span("rollouts ahead", iteration=self._iteration, step=self._snapshot.step):
                return await self._make()

        self._task = asyncio.get_running_loop().create_task(ahead(), context=context)

    async def take(self) -> JudgedRollouts:
        """Start the iteration's turn and wait for its rollouts. Raises the error that made them fail."""
        self._turn.set()
        if self._last is not None:
            self._run.progress(self._last)
        if self._task is None:
            self._task = asyncio.create_task(self._make())
        return await self._task

    async def ended(self) -> None:
        """Wait until the rollouts have ended, successfully or not."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def stop(self) -> None:
        """Cancel the rollouts. Those that are in the journal are not repeated."""
        if self._task is not None:
            self._task.cancel()
            await self.ended()
            if not self._task.cancelled():
                self._task.exception()  # mark it as retrieved; the iteration will run into the error itself

    async def _make(self) -> JudgedRollouts:
        """Roll out each scenario of the iteration several times, and those that replace earlier ones; then judge all
        rollouts. They are made together, because rollouts that wait for others leave the model idle."""
        collector = await self._run.collector(self._iteration)
        with self._environment() as environment:
            making = collector.within(replace(self._run, environment=environment, progress=self._report))
            scheduled, further = await self._scenarios(environment)
            tried = {Purpose.TRAIN: [scenario for scenario, _ in scheduled]}
            if self._run.config.replace_groups:
                tried[Purpose.REPLACEMENT] = [scenario for scenario, _ in further]
            began, count = time.monotonic(), sum(map(len, tried.values()))
            with span("rollouts", phase=Phase.ROLLOUT, count=count * self._run.config.rollouts_per_group):
                rollouts = await all_of(*(self._rollouts(making, *of_purpose) for of_purpose in tried.items()))
            rolled_out = time.monotonic()
            if not self._stale:  # verdicts can depend on feedback about the previous iteration
                await self._turn.wait()
            with span("verdicts", phase=Phase.JUDGE, groups=count):
                verdicts = zip(tried.items(), rollouts, strict=True)
                scheduled_groups, *extra = await all_of(
                    *(making.scored(*of_purpose, of_scenarios) for of_purpose, of_scenarios in verdicts)
                )
        drawn = tuple(included(group, of) for group, (_, of) in zip(scheduled_groups, scheduled, strict=True))
        replaced = zip(chain.from_iterable(extra), further, self._snapshot.taught_nothing, strict=False)
        replacements = tuple(included(group, of, scenario) for group, (_, of), scenario in replaced)
        step = self._snapshot.step
        return JudgedRollouts(collector, step, drawn, replacements, began, rolled_out, time.monotonic())

    async def _scenarios(self, environment: Environment) -> tuple[Draw, Draw]:
        """Return the scenarios that the schedule draws, and others that replace earlier ones."""
        config, pool, idle = self._run.config, self._run.pool, self._snapshot.taught_nothing
        count, seed, start = config.groups_per_iteration, config.seed, config.first_scenario
        if config.scenario_sampling == "difficulty":
            if not pool:
                most = min(config.iterations * count, MOST_SCENARIOS)
                pool[:] = different(await off_loop(environment, environment.scenarios, "train", most, seed, start))
            if len(pool) > count:
                known = {
                    n: groups for n, groups in self._run.groups.items() if n <= sampled_after(config, self._iteration)
                }
                extra = len(idle) if config.replace_groups else 0
                return await asyncio.to_thread(
                    draw_by_difficulty, pool, known, count=count, extra=extra, seed=seed, iteration=self._iteration
                )
        start += (self._iteration - config.supervised_iterations - 1) * count
        scheduled = await off_loop(environment, environment.scenarios, "train", count, seed, start)
        if not config.replace_groups:
            return [(scenario, 1.0) for scenario in scheduled], []
        # No iteration's own groups have these numbers. There are twice as many as can be used, so that an environment
        # that repeats its scenarios shows all of them.
        start += config.iterations * count
        reserve = await off_loop(environment, environment.scenarios, "train", 2 * count, seed, start)
        reserve = others(reserve, scheduled)[:count]
        further = reserve[: len(idle)]
        return [(scenario, 1.0) for scenario in scheduled], [(one, len(further) / len(reserve)) for one in further]

    async def _rollouts(
        self, making: RolloutCollector, purpose: Purpose, scenarios: Sequence[Scenario]
    ) -> Sequence[Rollout]:
        """Roll out each scenario several times."""
        config = self._run.config
        tasks = rollout_tasks(config.seed, scenarios, config.rollouts_per_group, purpose, self._iteration)
        return await making.rollouts(purpose, tasks, self._policy.endpoint(self._snapshot.step), config.temperature)

    def _report(self, progress: IterationProgress) -> None:
        self._last = progress
        if self._turn.is_set():
            self._run.progress(progress)

    @contextmanager
    def _environment(self) -> Iterator[Environment]:
        """Yield the run's environment, or another instance with the earlier state if the run's learns during the
        rollouts."""
        run_environment = self._run.environment
        if not self._stale or not isinstance(run_environment, Reflective):
            yield run_environment
            return
        if self._another_environment is None:
            raise ValueError(f"rollouts cannot run ahead in {run_environment.name}: it learns, and there is only one")
        with closing(self._another_environment()) as environment:
            if isinstance(environment, Reflective) and self._snapshot.environment_state is not None:
                environment.restore(self._snapshot.environment_state)
            yield environment
