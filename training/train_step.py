"""One GRPO step an iteration, taken once, whatever dies or is lost between the request and its reply."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import structlog

from environment.trace import span
from training.backends.art_import import import_art
from training.backends.base import (
    BackendRefused,
    JobForgotten,
    NotAccepted,
    Policy,
    StepConflict,
    TrainOutcome,
    TrainRequest,
)
from training.journal import TRAIN_INTENT, TRAINED, IterationJournal
from training.types import Group, RunConfig

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


UNSURE = "asked_twice"
"""A training metric, 1 where a second request was sent although the first one, whose job is unknown, might have come
through."""
_POLL_S = 1.0


log = structlog.get_logger(__name__)


class TrainRequests:
    """The train requests of one iteration, as its journal has them.

    Of the n-th request there are up to three entries, from the second on with `/n` behind the name (n from 1):
    `train.intent` before it is sent, `train.job` with the id that came back, `train.withdrawn` if it surely was not
    begun.
    """

    def __init__(self, journal: IterationJournal, step: int) -> None:
        """`step` is the policy's step that the training starts from."""
        self._journal = journal
        self._step = step
        kept = journal.kept
        intents = [value for name, value in kept.items() if name.partition("/")[0] == TRAIN_INTENT]
        self._count = len(intents)
        self.unsure = any(json.loads(value).get("unsure") for value in intents)
        """A request was sent although an earlier one may still come through."""
        last = self._suffix(self._count - 1)
        self.open = bool(intents) and f"train.withdrawn{last}" not in kept
        """The last request may have come through."""
        self.job: str | None = json.loads(kept.get(f"train.job{last}", "null"))
        """The job of the last request; None if its id never came back."""

    def _suffix(self, number: int) -> str:
        return f"/{number}" if number > 0 else ""

    async def begin(self, *, unsure: bool) -> None:
        """Note that another request is about to be sent."""
        self.unsure |= unsure
        self._count += 1
        self.open = True
        await self._keep(TRAIN_INTENT, {"step": self._step} | ({"unsure": True} if unsure else {}))

    async def submitted(self, job_id: str) -> None:
        """Note that the request came through."""
        await self._keep("train.job", job_id)

    async def withdraw(self) -> None:
        """Note that the request did not come through."""
        self.open = False
        await self._keep("train.withdrawn", True)

    async def _keep(self, name: str, value: object) -> None:
        await self._journal.keep(f"{name}{self._suffix(self._count - 1)}", json.dumps(value))


class TrainStep:
    """The training of one iteration, from the policy's step `step` to the next.

    Before the request is sent the journal says from which step it starts, and then the id of the job as soon as it is
    known. A successor follows that job, or sees by the policy's own step whether it landed; where the backend checks
    the expected step, a request that lands late finds the policy moved on, and trains nothing.
    """

    def __init__(self, config: RunConfig, policy: Policy, journal: IterationJournal, step: int) -> None:
        self._config = config
        self._policy = policy
        self._journal = journal
        self._step = step
        self._requests = TrainRequests(journal, step)

    async def take(self, groups: Sequence[Group]) -> TrainOutcome:
        """Train on the groups, unless the journal has the outcome.

        Raises StepConflict if another client trained the policy, and what the backend raises.
        """
        requests = self._requests
        if (known := await self._known()) is not None:
            return known
        outcome = await self._of_open_request() if requests.open else None
        if outcome is None:
            await requests.begin(unsure=requests.open and self._policy.settle_timeout_s > 0)
            outcome = await self._train(groups)
        if requests.unsure:
            outcome = replace(outcome, metrics={**outcome.metrics, UNSURE: 1.0})
        await self._journal.keep(TRAINED, json.dumps(asdict(outcome)))
        return outcome

    async def _known(self) -> TrainOutcome | None:
        """The journal's outcome; None if it has none, or if its checkpoint is lost where it is safe to train again."""
        if TRAINED not in self._journal.kept:
            return None
        outcome = TrainOutcome(**json.loads(self._journal.kept[TRAINED]))
        if self._policy.settle_timeout_s == 0 and await self._policy.step() < outcome.step:
            log.warning("the trained checkpoint is lost: training again", step=outcome.step)
            return None
        return outcome

    async def _of_open_request(self) -> TrainOutcome | None:
        """The outcome of the request that was sent before this process took over; None if it did not land and will
        not."""
        if self._requests.job is not None:
            with suppress(JobForgotten, StepConflict):
                return await self._policy.follow(self._requests.job, self._step)
        settle_s = self._policy.settle_timeout_s
        deadline = time.monotonic() + settle_s
        while not await self._landed():
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(min(_POLL_S, settle_s / 4))
        return await self._adopted()

    async def _landed(self) -> bool:
        """Whether a training from our step has landed. Raises StepConflict if another client trained the policy."""
        before, now = self._step, await self._policy.step()
        if now not in (before, before + 1):
            raise StepConflict(f"the run left the policy at step {before}; it is at step {now} now")
        return now == before + 1

    async def _adopted(self) -> TrainOutcome:
        return TrainOutcome(self._step + 1, await self._policy.metrics(self._step + 1))

    async def _train(self, groups: Sequence[Group]) -> TrainOutcome:
        # Adam's first steps are its noisiest, and full-sized: one unlucky batch could fix a bad habit.
        warmup = min(1.0, self._journal.iteration / self._config.warmup_iterations)
        learning_rate = self._config.learning_rate * warmup
        with span("train", step=self._step, groups=len(groups), learning_rate=learning_rate) as traced:
            request = TrainRequest(_trajectories(groups), learning_rate, self._step, self._config.train_options)
            try:
                outcome = await self._send(request)
            except StepConflict:
                # A training of ours whose reply was lost, or that was still queued, has landed meanwhile.
                if not await self._landed():
                    raise
                outcome = await self._adopted()
            traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        return outcome

    async def _send(self, request: TrainRequest) -> TrainOutcome:
        try:
            job_id = await self._policy.submit(request)
        except (NotAccepted, BackendRefused, ValueError):
            await self._requests.withdraw()
            raise
        await self._requests.submitted(job_id)
        return await self._policy.follow(job_id, self._step)


def _trajectories(groups: Sequence[Group]) -> "list[TrajectoryGroup]":
    art = import_art()
    return [
        art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None]) for group in groups
    ]
