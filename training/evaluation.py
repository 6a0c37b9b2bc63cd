"""Held-out evaluation: how well a checkpoint does on scenarios that no iteration trains on, and which one is best."""

from collections.abc import Sequence
from typing import Literal

from environment.base import Scenario
from environment.scenario_order import different
from environment.trace import span
from training.backends.base import Policy
from training.best_checkpoint import BestCheckpoint, Validation
from training.collector import RolloutCollector, RunContext
from training.phases import Phase, Purpose
from training.rollout.environment_calls import off_loop
from training.rollout.rollout import total
from training.rollout_tasks import rollout_tasks
from training.scoring import held_out_figures, successes
from training.task_errors import all_of
from training.types import Evaluation, Resume

HeldOut = Literal["validation", "test"]
Mode = Literal["sampled", "greedy"]


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
        """Evaluate the untrained policy on both splits. Raises NothingScored."""
        self._best = BestCheckpoint(step)
        splits = await all_of(self._validate(collector, step), self._evaluate(collector, "test", step))
        return [evaluation for split in splits for evaluation in split]

    async def after(self, iteration: int, collector: RolloutCollector, step: int) -> list[Evaluation]:
        """Run the evaluations that are due after an iteration; after the last one, also evaluate the best checkpoint on
        the test split. Raises NothingScored."""
        config, evaluations = self._config, list[Evaluation]()
        last = iteration == config.all_iterations
        ends_phase = last or iteration == config.supervised_iterations
        if ends_phase or iteration % config.evaluation.every == 0 or not config.evaluation.scenarios:
            evaluations += await self._validate(collector, step)
        if last:
            evaluations += await self._evaluate(collector, "test", self.best_step)
        return evaluations

    async def _validate(self, collector: RolloutCollector, step: int) -> list[Evaluation]:
        """Evaluate the newest checkpoint on the validation split, and update the best one."""
        evaluations = await self._evaluate(collector, "validation", step)
        if not evaluations:
            self._best = BestCheckpoint(step)
        for evaluation in evaluations:
            if evaluation.mode == "sampled":
                found = Validation(evaluation.success, evaluation.mean_reward, successes(evaluation.rollouts))
                self._best = self._best.after(step, found)
        return evaluations

    async def _evaluate(self, collector: RolloutCollector, split: HeldOut, step: int) -> list[Evaluation]:
        """Evaluate one checkpoint with sampled and greedy rollouts, if the run uses the split. Scenarios and seeds are
        the same each time, and a scenario that the environment repeats is used once. Both modes run concurrently, so
        that the engine can decode large batches."""
        evaluation = self._config.evaluation
        count = evaluation.test_scenarios if split == "test" else evaluation.scenarios
        if count == 0:
            return []
        made, seed = self._run.environment, self._config.held_out_seed
        scenarios = different(await off_loop(made, made.scenarios, split, count, seed))
        return await all_of(
            self._evaluate_mode(collector, split, "sampled", step, scenarios, evaluation.samples),
            self._evaluate_mode(collector, split, "greedy", step, scenarios, 1),
        )

    async def _evaluate_mode(
        self,
        collector: RolloutCollector,
        split: HeldOut,
        mode: Mode,
        step: int,
        scenarios: Sequence[Scenario],
        samples: int,
    ) -> Evaluation:
        tasks = rollout_tasks(self._config.held_out_seed, scenarios, samples, split)
        temperature = self._config.temperature if mode == "sampled" else 0.0
        purpose = Purpose(f"{split}.{mode}")
        with span("evaluate", phase=Phase.EVALUATE, split=split, mode=mode, step=step):
            rollouts = await collector.rollouts(purpose, tasks, self._policy.endpoint(step), temperature)
            groups = await collector.scored(purpose, scenarios, rollouts)
        scored = [rollout for group in groups for rollout in group.rollouts]
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
