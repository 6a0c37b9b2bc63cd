"""One GRPO step an iteration, taken once, whatever dies or is lost between the request and its reply."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import structlog

from environment.trace import span
from training.backends.art_import import import_art
from training.backends.base import (
    BackendRefused,
    JobForgotten,
    JobPolicy,
    NotAccepted,
    Policy,
    StepConflict,
    TrainOutcome,
)
from training.journal import Journal
from training.train_attempts import Attempts
from training.types import Group, RunConfig

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


UNSURE = "asked_twice"
"""A figure of a training that was asked for again, although the request before it, of which no job is known, might
have come through: 1."""
_LOOK_S = 1.0


log = structlog.get_logger(__name__)


class TrainStep:
    """Trains a policy from step to step.

    Before a training we note from which step it starts, and the job as soon as we are told of it. Whoever goes on after
    us follows that job, or sees by the policy's own counter whether it landed; and where the backend checks the step,
    one of ours that lands late finds the counter moved, and trains nothing.
    """

    def __init__(self, config: RunConfig, policy: Policy, journal: Journal) -> None:
        self._config = config
        self._policy = policy
        self._journal = journal
        self._attempts = Attempts(journal, 0, 0, {})

    async def take(self, iteration: int, step: int, groups: Sequence[Group], kept: Mapping[str, str]) -> TrainOutcome:
        """The outcome of the iteration's training, which starts from `step`; `kept` is its journal so far.

        Raises StepConflict if somebody else trained the policy, and what the backend raises.
        """
        if "train" in kept:
            outcome = TrainOutcome(**json.loads(kept["train"]))
            if not await self._torn(outcome):
                return outcome
            log.warning("trained checkpoint is lost, training it again", iteration=iteration, step=outcome.step)
        self._attempts = attempts = Attempts(self._journal, iteration, step, kept)
        before_us = await self._before_us(step) if attempts.open else None
        if before_us is None:
            await attempts.begin(unsure=attempts.open and self._quiet_s() > 0)
        outcome = before_us or await self._train(iteration, step, groups)
        if attempts.unsure:
            outcome = replace(outcome, metrics={**outcome.metrics, UNSURE: 1.0})
        await self._journal.keep(iteration, "train", json.dumps(asdict(outcome)))
        return outcome

    async def _before_us(self, step: int) -> TrainOutcome | None:
        """What became of the request that was sent before we came; None if it did not land and will not."""
        if self._attempts.job is not None and isinstance(self._policy, JobPolicy):
            with suppress(JobForgotten, StepConflict):
                return await self._policy.follow(self._attempts.job, step)
        deadline = time.monotonic() + self._quiet_s()
        while not await self._landed(step):
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(min(_LOOK_S, self._quiet_s() / 4))
        return await self._adopted(step)

    async def _torn(self, outcome: TrainOutcome) -> bool:
        """Whether the checkpoint that the training led to is gone, where asking for it again is safe."""
        policy = self._policy
        return isinstance(policy, JobPolicy) and policy.quiet_s == 0 and await policy.step() < outcome.step

    def _quiet_s(self) -> float:
        return self._policy.quiet_s if isinstance(self._policy, JobPolicy) else 0.0

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
                outcome = await self._asked(step, _trajectories(groups), learning_rate)
            except StepConflict:
                # A training of ours whose reply was lost, or that was still queued, has landed meanwhile.
                if not await self._landed(step):
                    raise
                outcome = await self._adopted(step)
            traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        return outcome

    async def _asked(self, step: int, groups: "list[TrajectoryGroup]", learning_rate: float) -> TrainOutcome:
        policy, options = self._policy, self._config.train_options
        if not isinstance(policy, JobPolicy):
            return await policy.train(groups, learning_rate=learning_rate, expected_step=step, options=options)
        try:
            job_id = await policy.submit(groups, learning_rate=learning_rate, expected_step=step, options=options)
        except (NotAccepted, BackendRefused, ValueError):
            await self._attempts.withdraw()
            raise
        await self._attempts.submitted(job_id)
        return await policy.follow(job_id, step)


def _trajectories(groups: Sequence[Group]) -> "list[TrajectoryGroup]":
    art = import_art()
    return [
        art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None]) for group in groups
    ]
