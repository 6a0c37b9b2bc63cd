"""One training an iteration, done once, whatever dies or is lost between the request and its reply."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
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
    SupervisedPolicy,
    SupervisedRequest,
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


Submit = Callable[[], Awaitable[str]]
"""Sends the request; returns the job's id."""
Follow = Callable[[str, int], Awaitable[TrainOutcome]]
"""As Policy.follow."""


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
        return await self._once(lambda: self._train(groups), self._policy.follow)

    async def imitate(self, request: SupervisedRequest, report: Callable[[int, int], None]) -> TrainOutcome:
        """Train on demonstrations, unless the journal has the outcome; `report` is told how far that is, in optimizer
        steps. Raises what `take` raises, and ValueError where the policy does not learn from demonstrations."""
        policy = self._policy
        if not isinstance(policy, SupervisedPolicy):
            raise ValueError("the backend of this run does not train on demonstrations (warm_start)")

        async def submit() -> str:
            return await policy.submit_supervised(request)

        async def follow(job_id: str, expected_step: int) -> TrainOutcome:
            return await policy.follow(job_id, expected_step, report)

        async def train() -> TrainOutcome:
            with span("train", step=self._step, demonstrations=len(request.demonstrations)) as traced:
                outcome = await self._landing(submit, follow)
                traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
            return outcome

        return await self._once(train, follow)

    async def _once(self, train: Callable[[], Awaitable[TrainOutcome]], follow: Follow) -> TrainOutcome:
        requests = self._requests
        if (known := await self._known()) is not None:
            return known
        outcome = await self._of_open_request(follow) if requests.open else None
        if outcome is None:
            await requests.begin(unsure=requests.open and self._policy.settle_timeout_s > 0)
            outcome = await train()
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

    async def _of_open_request(self, follow: Follow) -> TrainOutcome | None:
        """The outcome of the request that was sent before this process took over; None if it did not land and will
        not."""
        if self._requests.job is not None:
            with suppress(JobForgotten, StepConflict):
                return await follow(self._requests.job, self._step)
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
        iteration = self._journal.iteration - self._config.supervised_iterations
        warmup = min(1.0, iteration / self._config.warmup_iterations)
        learning_rate = self._config.learning_rate * warmup
        with span("train", step=self._step, groups=len(groups), learning_rate=learning_rate) as traced:
            request = TrainRequest(_trajectories(groups), learning_rate, self._step, self._config.train_options)
            outcome = await self._landing(lambda: self._policy.submit(request), self._policy.follow)
            traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        return outcome

    async def _landing(self, submit: Submit, follow: Follow) -> TrainOutcome:
        try:
            return await self._send(submit, follow)
        except StepConflict:
            # A training of ours whose reply was lost, or that was still queued, has landed meanwhile.
            if not await self._landed():
                raise
            return await self._adopted()

    async def _send(self, submit: Submit, follow: Follow) -> TrainOutcome:
        try:
            job_id = await submit()
        except (NotAccepted, BackendRefused, ValueError):
            await self._requests.withdraw()
            raise
        await self._requests.submitted(job_id)
        return await follow(job_id, self._step)


def _trajectories(groups: Sequence[Group]) -> "list[TrajectoryGroup]":
    art = import_art()
    return [
        art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None]) for group in groups
    ]
