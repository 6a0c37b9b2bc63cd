"""The learn loop: roll out, judge, train, reflect, evaluate; once for each iteration. It reads top to bottom.

It owns no state that must survive and knows no HTTP and no database: whoever consumes it (under
`contextlib.aclosing`) saves what it yields. Cancelling the consumer leaves no rollout running.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal

from ulid import ULID

from environment.base import Environment, Reflective, Rewarded, Scenario, Split
from environment.trace import span
from judges.base import Judge
from training.backends.art_import import import_art
from training.backends.base import Policy
from training.rollouts import Chat, failed, open_chat, rollout, total
from training.scoring import score_group, share, success_rate, summarise
from training.types import (
    Evaluation,
    Group,
    IterationResult,
    Progress,
    Reflection,
    Rollout,
    RunConfig,
    ScoredRollout,
    Timing,
)

Report = Callable[[Progress], None]


class RolloutsFailed(Exception):
    """Every rollout of an iteration, or of one of its evaluations, failed: there is nothing to learn or to tell."""


class NothingScored(Exception):
    """The judge scored no rollout of an evaluation: any figure would be invented."""


async def learn_loop(
    config: RunConfig,
    environment: Environment,
    judge: Judge,
    policy: Policy,
    *,
    progress: Report = lambda _: None,
) -> AsyncGenerator[IterationResult, None]:
    """Run the loop, yielding the baseline (iteration 0) and then each iteration as it is done.

    The same config on a deterministic backend gives the same results. Raises what the backend raises when
    training fails. Rollouts and judges that fail are data, but where all do, RolloutsFailed or NothingScored is raised.
    """
    await asyncio.to_thread(import_art)
    loop = _Loop(config, environment, judge, policy, progress)
    with span("baseline", iteration=0):
        result = await loop.baseline()
    yield result
    for iteration in range(1, config.iterations + 1):
        with span("iteration", iteration=iteration):
            result = await loop.iterate(iteration)
        yield result


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A rollout to make: which scenario, and what its randomness comes from."""

    scenario: Scenario
    seed: int


class _Loop:
    """What one run of the loop carries from iteration to iteration: the policy's step and the best one."""

    def __init__(
        self, config: RunConfig, environment: Environment, judge: Judge, policy: Policy, progress: Report
    ) -> None:
        self._config = config
        self._environment = environment
        self._judge = judge
        self._policy = policy
        self._progress = progress
        self._step = 0
        self._best_step = 0
        self._best = (-1.0, 0.0)

    async def baseline(self) -> IterationResult:
        """Evaluate the policy as it came, on both held-out splits."""
        clock = time.monotonic()
        seconds: dict[str, float] = {}
        self._step = self._best_step = await self._policy.step()
        with _timed(seconds, "evaluate_s"):
            evaluations = [*await self._validate(0), *await self._evaluate(0, "test", self._step)]
        with _timed(seconds, "reflect_s"):
            reflection = await self._reflect(0, ())
        return self._result(0, (), {}, evaluations, reflection, seconds, clock)

    async def iterate(self, iteration: int) -> IterationResult:
        """Roll out, judge, train, reflect, and evaluate when it is time."""
        clock = time.monotonic()
        seconds: dict[str, float] = {}
        groups = await self._groups(iteration, seconds)
        with _timed(seconds, "train_s"):
            metrics = await self._train_on(iteration, [group for group in groups if group.skipped is None])
        with _timed(seconds, "reflect_s"):
            reflection = await self._reflect(iteration, groups)
        evaluations: list[Evaluation] = []
        last = iteration == self._config.iterations
        with _timed(seconds, "evaluate_s"):
            if last or iteration % self._config.evaluation.every == 0:
                evaluations += await self._validate(iteration)
            if last:
                evaluations += await self._evaluate(iteration, "test", self._best_step)
        return self._result(iteration, groups, metrics, evaluations, reflection, seconds, clock)

    async def _groups(self, iteration: int, seconds: dict[str, float]) -> tuple[Group, ...]:
        """Try each scenario of the iteration several times and score the tries."""
        config = self._config
        start = (iteration - 1) * config.groups_per_iteration
        scenarios = self._environment.scenarios("train", config.groups_per_iteration, config.seed, start)
        attempts = self._attempts(scenarios, config.rollouts_per_group, "train", iteration)
        with _timed(seconds, "rollout_s"):
            rollouts = await self._rollouts(iteration, "rollout", attempts, self._step, config.temperature)
        with _timed(seconds, "judge_s"):
            return await self._scored(iteration, scenarios, rollouts)

    async def _scored(
        self, iteration: int, scenarios: Sequence[Scenario], rollouts: Sequence[Rollout]
    ) -> tuple[Group, ...]:
        """Score the rollouts, which come in the order of their scenarios, equally many for each."""
        each = len(rollouts) // len(scenarios)
        self._progress(Progress(iteration, "judge", 0, len(scenarios)))
        return tuple(
            await asyncio.gather(
                *(
                    score_group(self._environment, self._judge, scenario, rollouts[number * each : (number + 1) * each])
                    for number, scenario in enumerate(scenarios)
                )
            )
        )

    async def _train_on(self, iteration: int, groups: Sequence[Group]) -> dict[str, float]:
        """One GRPO step on the groups that have something to teach; none if there is no such group."""
        if not groups:
            return {}
        art = import_art()
        self._progress(Progress(iteration, "train", 0, 1))
        # Adam's first steps are its noisiest, and full-sized: one unlucky batch could fix a bad habit.
        learning_rate = self._config.learning_rate * min(1.0, iteration / self._config.warmup_iterations)
        with span("train", step=self._step, groups=len(groups), learning_rate=learning_rate) as traced:
            outcome = await self._policy.train(
                [
                    art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None])
                    for group in groups
                ],
                learning_rate=learning_rate,
                expected_step=self._step,
                options=self._config.train_options,
            )
            traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        self._step = outcome.step
        self._progress(Progress(iteration, "train", 1, 1))
        return dict(outcome.metrics)

    async def _reflect(self, iteration: int, groups: Sequence[Group]) -> Reflection | None:
        """Let the environment learn from the iteration, then show what the new policy does in it."""
        environment = self._environment
        if not isinstance(environment, Reflective):
            return None
        with span("reflect", step=self._step):
            environment.reflect(rewarded(groups))
            scenario = environment.showcase(self._config.seed)
            attempts = [_Attempt(scenario, self._seed("showcase"))]
            tried = await self._rollouts(iteration, "reflect", attempts, self._step, temperature=0.0)
            group = await score_group(environment, self._judge, scenario, tried)
        return Reflection(environment.state(), group.rollouts[0], group.judge_calls)

    async def _validate(self, iteration: int) -> list[Evaluation]:
        """Evaluate the newest checkpoint on the validation split; it becomes the best if it is."""
        evaluations = await self._evaluate(iteration, "validation", self._step)
        for evaluation in evaluations:
            figures = (evaluation.success, evaluation.mean_reward)
            if evaluation.mode == "sampled" and figures > self._best:
                self._best, self._best_step = figures, self._step
        return evaluations

    async def _evaluate(self, iteration: int, split: Split, step: int) -> list[Evaluation]:
        """Sampled and greedy figures of one checkpoint. The same scenarios and seeds each time."""
        evaluation = self._config.evaluation
        count = evaluation.test_scenarios if split == "test" else evaluation.scenarios
        scenarios = self._environment.scenarios(split, count, self._config.seed)
        return [
            await self._evaluate_mode(iteration, split, "sampled", step, scenarios, evaluation.samples),
            await self._evaluate_mode(iteration, split, "greedy", step, scenarios, 1),
        ]

    async def _evaluate_mode(
        self,
        iteration: int,
        split: Split,
        mode: Literal["sampled", "greedy"],
        step: int,
        scenarios: Sequence[Scenario],
        samples: int,
    ) -> Evaluation:
        attempts = self._attempts(scenarios, samples, split)
        temperature = self._config.temperature if mode == "sampled" else 0.0
        rollouts = await self._rollouts(iteration, "evaluate", attempts, step, temperature)
        groups = await self._scored(iteration, scenarios, rollouts)
        scored = [rollout for group in groups for rollout in group.rollouts]
        if all(rollout.reward is None for rollout in scored):
            raise NothingScored(f"the judge {self._judge.name} scored no rollout: {scored[0].score.explanation}")
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

    async def _rollouts(
        self,
        iteration: int,
        phase: Literal["rollout", "reflect", "evaluate"],
        attempts: Sequence[_Attempt],
        step: int,
        temperature: float,
    ) -> list[Rollout]:
        """All attempts, `concurrency` at once, in their order. Nothing runs on after it returns or raises.

        Raises RolloutsFailed if every one of them failed; a showcase may.
        """
        config = self._config
        gate = asyncio.Semaphore(config.concurrency)
        done = 0

        async def attempt(chat: Chat, wanted: _Attempt) -> Rollout:
            nonlocal done
            async with gate:
                finished = await rollout(
                    self._environment,
                    wanted.scenario,
                    chat,
                    id=str(ULID()),
                    seed=wanted.seed,
                    max_turns=config.max_turns,
                    temperature=temperature,
                    max_completion_tokens=config.max_completion_tokens,
                    timeout_s=config.rollout_timeout_s,
                )
            done += 1
            self._progress(Progress(iteration, phase, done, len(attempts)))
            return finished

        self._progress(Progress(iteration, phase, 0, len(attempts)))
        async with (
            open_chat(self._policy.endpoint(step), config.concurrency) as chat,
            asyncio.TaskGroup() as tasks,
        ):
            started = []
            for wanted in attempts:
                started.append(tasks.create_task(attempt(chat, wanted)))
                await asyncio.sleep(0)  # the first request is sent while the others are still being made
        rollouts = [task.result() for task in started]
        if failed(rollouts) == len(rollouts) and phase != "reflect":
            raise RolloutsFailed(
                f"all {len(rollouts)} rollouts of iteration {iteration} failed, the first: {rollouts[0].error}"
            )
        return rollouts

    def _attempts(self, scenarios: Sequence[Scenario], tries: int, *where: object) -> list[_Attempt]:
        """`tries` attempts at each scenario. Their seeds tell apart a scenario that was drawn twice."""
        return [
            _Attempt(scenario, self._seed(*where, place, number))
            for place, scenario in enumerate(scenarios)
            for number in range(tries)
        ]

    def _seed(self, *parts: object) -> int:
        return Random(":".join(map(str, (self._config.seed, *parts)))).getrandbits(53)

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
