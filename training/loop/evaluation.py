"""Held-out evaluation: how well a checkpoint does on scenarios that no iteration trains on, and which one is best."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Literal, get_args

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.scenario_order import different
from learnloop_service.environment.trace import span
from learnloop_service.training.backends.base import Policy
from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.loop.collector import RolloutCollector, RunContext
from learnloop_service.training.loop.rollout_tasks import rollout_tasks
from learnloop_service.training.loop.task_errors import all_of
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.rollout import total
from learnloop_service.training.scoring import held_out_figures, successes
from learnloop_service.training.statistics.shares import wilson
from learnloop_service.training.types import Evaluation, Group, Resume

HeldOut = Literal["validation", "test"]
Mode = Literal["sampled", "greedy"]
_MODES: Sequence[Mode] = get_args(Mode)
_BATCH = 64
"""Scenarios of the baseline that are evaluated before its intervals are looked at: few looks, so that luck seldom ends
it, and as many scenarios as the diagnosis needs (training/diagnosis/generalisation.py)."""


class NothingScored(Exception):
    """The judge scored no rollout of an evaluation, so there are no figures to report."""


class Evaluator:
    """Evaluates checkpoints of one run and tracks the best one by its sampled rollouts on the validation split, or the
    newest if the run does not validate."""

    def __init__(self, run: RunContext, policy: Policy) -> None:
        self._best = BestCheckpoint()
        self._run = run
        self._config = run.config
        self._policy = policy

    @property
    def best_step(self) -> int:
        """Step of the best checkpoint."""
        return self._best.step

    def resume(self, where: Resume) -> None:
        """Restore the best checkpoint and the highest figures."""
        self._best = where.best

    async def baseline(self, collector: RolloutCollector, step: int) -> list[Evaluation]:
        """Evaluate the untrained policy on both splits, each until its success is known well enough. Raises
        NothingScored."""
        self._best = BestCheckpoint(step)
        width = self._config.evaluation.baseline_width or None
        splits = await all_of(self._validate(collector, step, width), self._evaluate(collector, "test", step, width))
        return [evaluation for split in splits for evaluation in split]

    async def after(
        self, iteration: int, collector: RolloutCollector, step: int, *, ends: bool = False, best: int | None = None
    ) -> list[Evaluation]:
        """Run the evaluations that are due after an iteration, counted from the last one on demonstrations; after the
        last of the run, also evaluate the best checkpoint on the test split. The run `ends` early, or after all its
        iterations. With `best`, validation does not decide which one is the best. Raises NothingScored."""
        config, evaluations = self._config, list[Evaluation]()
        last, reinforced = ends or iteration == config.all_iterations, iteration - config.supervised_iterations
        if last or reinforced % config.evaluation.every == 0 or not config.evaluation.scenarios:
            evaluations += await self._validate(collector, step)
        if best is not None:
            self._best = BestCheckpoint(best)
        return [*evaluations, *(await self.test(collector) if last else ())]

    async def test(self, collector: RolloutCollector) -> list[Evaluation]:
        """Evaluate the best checkpoint on the test split. Raises NothingScored."""
        return await self._evaluate(collector, "test", self.best_step)

    async def _validate(self, collector: RolloutCollector, step: int, width: float | None = None) -> list[Evaluation]:
        """Evaluate the newest checkpoint on the validation split, and update the best one."""
        evaluations = await self._evaluate(collector, "validation", step, width)
        if not evaluations:
            self._best = BestCheckpoint(step)
        for evaluation in evaluations:
            if evaluation.mode == "sampled":
                by_scenario = successes(evaluation.rollouts)
                validation = Validation(evaluation.success, evaluation.mean_reward, by_scenario, evaluation.scenarios)
                self._best = self._best.after(step, validation, self._config.evaluation.best)
        return evaluations

    async def _evaluate(
        self, collector: RolloutCollector, split: HeldOut, step: int, width: float | None = None
    ) -> list[Evaluation]:
        """Evaluate one checkpoint with sampled and greedy rollouts, if the run uses the split. Scenarios and seeds are
        the same each time, and a scenario that the environment repeats is used once. Both modes run concurrently, so
        that the engine can decode large batches. With a `width`, no batch is begun after the 95% intervals of both
        modes' success are narrower."""
        evaluation = self._config.evaluation
        count = evaluation.test_scenarios if split == "test" else evaluation.scenarios
        if count == 0:
            return []
        environment, seed = self._run.environment, self._config.held_out_seed
        scenarios = different(await off_loop(environment, environment.scenarios, split, count, seed))
        groups: dict[Mode, dict[int, Group]] = {mode: {} for mode in _MODES}
        for indices in _batches(len(scenarios), seed) if width else [range(len(scenarios))]:
            attempts = (self._attempt(collector, split, mode, step, scenarios, indices) for mode in _MODES)
            for mode, judged in zip(_MODES, await all_of(*attempts), strict=True):
                groups[mode].update(zip(indices, judged, strict=True))
            if width and all(_width(of_mode.values()) < width for of_mode in groups.values()):
                break
        return [self._evaluation(split, mode, step, groups[mode]) for mode in _MODES]

    async def _attempt(
        self,
        collector: RolloutCollector,
        split: HeldOut,
        mode: Mode,
        step: int,
        scenarios: Sequence[Scenario],
        indices: Sequence[int],
    ) -> tuple[Group, ...]:
        """Return the judged rollouts of the scenarios at these indices. Their seeds and their numbers in the journal do
        not depend on which scenarios are evaluated together."""
        config, samples = self._config, self._samples(mode)
        tasks = rollout_tasks(config.held_out_seed, scenarios, samples, split)
        temperature = config.temperature if mode == "sampled" else 0.0
        purpose, is_part = Purpose(f"{split}.{mode}"), len(indices) < len(scenarios)
        numbers = [index * samples + number for index in indices for number in range(samples)]
        chosen, attempts = [scenarios[index] for index in indices], [tasks[number] for number in numbers]
        endpoint = self._policy.endpoint(step)
        with span("evaluate", phase=Phase.EVALUATE, split=split, mode=mode, step=step):
            rollouts = await collector.rollouts(purpose, attempts, endpoint, temperature, numbers if is_part else None)
            return await collector.scored(purpose, chosen, rollouts, indices if is_part else None)

    def _samples(self, mode: Mode) -> int:
        return self._config.evaluation.samples if mode == "sampled" else 1

    def _evaluation(self, split: HeldOut, mode: Mode, step: int, judged: Mapping[int, Group]) -> Evaluation:
        """Return the figures of the judged rollouts, by the index of their scenario. Raises NothingScored."""
        groups = [judged[index] for index in sorted(judged)]
        scored, samples = [rollout for group in groups for rollout in group.rollouts], self._samples(mode)
        rollouts = [attempt.rollout for attempt in scored]
        if all(rollout.reward is None for rollout in scored):
            raise NothingScored(f"the judge scored no rollout: {scored[0].score.explanation}")
        figures = held_out_figures(scored, samples, by_scenario=self._config.evaluation.is_by_scenario)
        return Evaluation(
            split=split,
            mode=mode,
            step=step,
            scenarios=figures.scenarios,
            success=figures.success,
            mean_reward=figures.mean_reward,
            malformed=figures.malformed,
            turns=total(rollouts, "turns") / len(rollouts),
            rollouts=tuple(scored),
            judge_calls=tuple(call for group in groups for call in group.judge_calls),
        )


def _batches(count: int, seed: int) -> list[list[int]]:
    """Return the indices of this number of scenarios in batches that are drawn at random, because an environment can
    have an order of its own."""
    order = Random(f"baseline:{seed}").sample(range(count), count)
    return [sorted(order[start : start + _BATCH]) for start in range(0, count, _BATCH)]


def _width(groups: Iterable[Group]) -> float:
    """Return the width of the 95% interval of the scenarios' success."""
    rates = successes(rollout for group in groups for rollout in group.rollouts).values()
    low, high = wilson(fmean(rates), len(rates)) if rates else (0.0, 1.0)
    return high - low
