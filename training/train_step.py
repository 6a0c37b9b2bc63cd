"""One GRPO step an iteration, taken once, whatever dies or is lost between the request and its reply."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from environment.trace import span
from training.backends.art_import import import_art
from training.backends.base import Policy, StepConflict, TrainOutcome
from training.journal import Journal
from training.types import Group, RunConfig

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


class TrainStep:
    """Trains a policy from step to step.

    Before a training we note from which step it starts. Whoever goes on after us sees by the policy's own counter
    whether it landed; and one of ours that lands late finds the counter moved, and trains nothing.
    """

    def __init__(self, config: RunConfig, policy: Policy, journal: Journal) -> None:
        self._config = config
        self._policy = policy
        self._journal = journal

    async def take(self, iteration: int, step: int, groups: Sequence[Group], kept: Mapping[str, str]) -> TrainOutcome:
        """The outcome of the iteration's training, which starts from `step`; `kept` is its journal so far.

        Raises StepConflict if somebody else trained the policy, and what the backend raises.
        """
        if "train" in kept:
            return TrainOutcome(**json.loads(kept["train"]))
        if "train.intent" in kept and await self._landed(step):
            outcome = await self._adopted(step)
        else:
            await self._journal.keep(iteration, "train.intent", json.dumps({"step": step}))
            outcome = await self._train(iteration, step, groups)
        await self._journal.keep(iteration, "train", json.dumps(asdict(outcome)))
        return outcome

    async def _landed(self, before: int) -> bool:
        """Whether a training that started from step `before` landed. Raises StepConflict if somebody else trained."""
        now = await self._policy.step()
        if now not in (before, before + 1):
            raise StepConflict(f"the run left the policy at step {before}; it is at step {now} now")
        return now == before + 1

    async def _adopted(self, before: int) -> TrainOutcome:
        return TrainOutcome(before + 1, await self._policy.metrics(before + 1))

    async def _train(self, iteration: int, step: int, groups: Sequence[Group]) -> TrainOutcome:
        # Adam's first steps are its noisiest, and full-sized: one unlucky batch could fix a bad habit.
        learning_rate = self._config.learning_rate * min(1.0, iteration / self._config.warmup_iterations)
        with span("train", step=step, groups=len(groups), learning_rate=learning_rate) as traced:
            try:
                outcome = await self._policy.train(
                    _trajectories(groups),
                    learning_rate=learning_rate,
                    expected_step=step,
                    options=self._config.train_options,
                )
            except StepConflict:
                # A training of ours whose reply was lost, or that was still queued, has landed meanwhile.
                if not await self._landed(step):
                    raise
                outcome = await self._adopted(step)
            traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        return outcome


def _trajectories(groups: Sequence[Group]) -> "list[TrajectoryGroup]":
    art = import_art()
    return [
        art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None]) for group in groups
    ]
