"""The training of an iteration, done once even if a process dies or a reply is lost, as far as the backend allows."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from learnloop_service.environment.trace import span
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendRefused,
    EarlyPolicy,
    JobForgotten,
    NotAccepted,
    OnTrained,
    Policy,
    RestoreRequest,
    RestoringPolicy,
    StepConflict,
    StepRequest,
    SupervisedPolicy,
    SupervisedRequest,
    TrainingFailed,
    TrainingInterrupted,
    TrainingStalled,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.journal import TRAIN_INTENT, TRAINED, IterationJournal
from learnloop_service.training.types import Group, RunConfig

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup


UNSURE = "asked_twice"
"""Training metric that is 1 if a second request was sent although the first, whose job is unknown, could still have
been accepted."""
_POLL_S = 1.0


Submit = Callable[[], Awaitable[str]]
"""Sends the request and returns the job's id."""
Follow = Callable[[str, int], Awaitable[TrainOutcome]]
"""Like Policy.follow."""


log = structlog.get_logger(__name__)


class TrainRequests:
    """The train requests of one iteration, as recorded in its journal.

    A request has up to three entries: `train.intent` before it is sent, `train.job` with the returned job id, and
    `train.withdrawn` if it did not start or its job failed. From the second request on, the names have the suffix `/n`,
    with n from 1.
    """

    def __init__(self, journal: IterationJournal, step: int) -> None:
        """`step` is the policy's step from which the training starts."""
        self._journal = journal
        self._step = step
        entries = journal.kept
        intents = [value for name, value in entries.items() if name.partition("/")[0] == TRAIN_INTENT]
        self._count = len(intents)
        self.unsure = any(json.loads(value).get("unsure") for value in intents)
        """Whether a request was sent although an earlier one could still take effect."""
        last = self._suffix(self._count - 1)
        self.open = bool(intents) and f"train.withdrawn{last}" not in entries
        """Whether the last request could have been accepted."""
        self.job: str | None = json.loads(entries.get(f"train.job{last}", "null"))
        """Job of the last request; None if its id was never received."""

    def _suffix(self, number: int) -> str:
        return f"/{number}" if number > 0 else ""

    async def begin(self, *, unsure: bool) -> None:
        """Record that another request is about to be sent."""
        self.unsure |= unsure
        self._count += 1
        self.open = True
        await self._keep(TRAIN_INTENT, {"step": self._step} | ({"unsure": True} if unsure else {}))

    async def submitted(self, job_id: str) -> None:
        """Record that the request was accepted."""
        await self._keep("train.job", job_id)

    async def withdraw(self) -> None:
        """Record that the request was not accepted, or that its job failed, so that the next one is sent anew."""
        self.open = False
        await self._keep("train.withdrawn", True)

    async def _keep(self, name: str, value: object) -> None:
        await self._journal.keep(f"{name}{self._suffix(self._count - 1)}", json.dumps(value))


class TrainStep:
    """The training of one iteration, from the policy's step `step` to the next.

    The journal records the starting step before the request is sent, and the job's id as soon as it is known. After a
    takeover, the new worker follows that job, or tells from the policy's step whether the training took effect. If the
    backend checks the expected step, a late request finds that the policy has moved on, and trains nothing.
    """

    def __init__(self, policy: Policy, journal: IterationJournal, step: int, trained: OnTrained | None = None) -> None:
        """`trained` is called if the next step can be sampled while its checkpoint is still being written."""
        self._policy = policy
        self._journal = journal
        self._step = step
        self._requests = TrainRequests(journal, step)
        self._follow_job = cast(Callable[..., Awaitable[TrainOutcome]], policy.follow)
        if trained is not None and isinstance(policy, EarlyPolicy):
            self._follow_job = partial(self._follow_job, trained=trained)

    async def take(self, request: StepRequest, report: Callable[[int, int], None] | None = None) -> TrainOutcome:
        """Carry out a request, unless the journal has the outcome. It is sent only if no earlier one took effect.
        `report` is called with the finished and the total number of optimizer steps of a supervised request.

        Raises StepConflict if another client trained the policy, the backend's errors, and ValueError if the policy
        cannot do what is requested.
        """
        if (journaled := await self._outcome_from_journal()) is not None:
            return journaled
        requests, (submit, about), follow = self._requests, self._sending(request), self._follow_job
        if isinstance(request, SupervisedRequest):
            follow = partial(follow, report=report)
        outcome = await self._settle_open_request(follow) if requests.open else None
        if outcome is None:
            await requests.begin(unsure=requests.open and self._policy.settle_timeout_s > 0)
            name = "restore" if isinstance(request, RestoreRequest) else "train"
            with span(name, step=self._step, **about) as traced:
                outcome = await self._send_or_adopt(submit, follow)
                traced.output = {"step": outcome.step, "metrics": dict(outcome.metrics)}
        if requests.unsure:
            outcome = replace(outcome, metrics={**outcome.metrics, UNSURE: 1.0})
        await self._journal.keep(TRAINED, json.dumps(asdict(outcome)))
        return outcome

    def _sending(self, request: StepRequest) -> tuple[Submit, Mapping[str, Any]]:
        """Return what sends a request, and what its span says about it. Raises ValueError."""
        policy = self._policy
        if isinstance(request, TrainRequest):
            about = {"groups": len(request.groups), "learning_rate": request.learning_rate}
            return partial(policy.submit, request), about
        if isinstance(request, RestoreRequest):
            if not isinstance(policy, RestoringPolicy):
                raise ValueError("the backend of this run does not go back to earlier checkpoints (on_collapse)")
            return partial(policy.submit_restore, request.step, self._step), {"restored_step": request.step}
        if not isinstance(policy, SupervisedPolicy):
            raise ValueError("the backend of this run does not train on demonstrations (warm_start)")
        return partial(policy.submit_supervised, request), {"demonstrations": len(request.demonstrations)}

    async def _outcome_from_journal(self) -> TrainOutcome | None:
        """Return the journal's outcome. None if there is none, or if its checkpoint is lost and it is safe to train
        again."""
        if TRAINED not in self._journal.kept:
            return None
        outcome = TrainOutcome(**json.loads(self._journal.kept[TRAINED]))
        if self._policy.settle_timeout_s == 0 and await self._policy.step() < outcome.step:
            log.warning("the trained checkpoint is lost: training again", step=outcome.step)
            return None
        return outcome

    async def _settle_open_request(self, follow: Follow) -> TrainOutcome | None:
        """Return the outcome of the request that was sent before this process took over; None if it did not take effect
        and never will."""
        if self._requests.job is not None:
            with suppress(JobForgotten, StepConflict):
                return await self._follow(self._requests.job, follow)
        settle_s = self._policy.settle_timeout_s
        deadline = time.monotonic() + settle_s
        while not await self._took_effect():
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(min(_POLL_S, settle_s / 4))
        return await self._outcome_from_checkpoint()

    async def _took_effect(self) -> bool:
        """Return whether a training from our step took effect. Raises StepConflict if another client trained the
        policy."""
        before, now = self._step, await self._policy.step()
        if now not in (before, before + 1):
            raise StepConflict(f"the run left the policy at step {before}; it is at step {now} now")
        return now == before + 1

    async def _outcome_from_checkpoint(self) -> TrainOutcome:
        return TrainOutcome(self._step + 1, await self._policy.metrics(self._step + 1))

    async def _send_or_adopt(self, submit: Submit, follow: Follow) -> TrainOutcome:
        try:
            try:
                job_id = await submit()
            except (NotAccepted, BackendRefused, ValueError):
                await self._requests.withdraw()
                raise
            await self._requests.submitted(job_id)
            return await self._follow(job_id, follow)
        except StepConflict:
            # An earlier training of ours, whose reply was lost or which was still queued, has taken effect in the
            # meantime.
            if not await self._took_effect():
                raise
            return await self._outcome_from_checkpoint()

    async def _follow(self, job_id: str, follow: Follow) -> TrainOutcome:
        """Follow a job to its end. A failed job is withdrawn, because it would report the same failure for ever."""
        try:
            return await follow(job_id, self._step)
        except TrainingStalled:
            raise
        except (TrainingFailed, TrainingInterrupted):
            await self._requests.withdraw()
            raise


def request_for(config: RunConfig, groups: Sequence[Group], iteration: int, step: int) -> TrainRequest:
    """Return the request of an iteration that trains on its groups, from the policy's step `step`."""
    # Adam's first steps are its noisiest and have full size, so one unlucky batch could entrench a bad habit.
    warmup = min(1.0, (iteration - config.supervised_iterations) / config.warmup_iterations)
    return TrainRequest(_trajectories(groups), config.learning_rate * warmup, step, config.train_options)


def _trajectories(groups: Sequence[Group]) -> "list[TrajectoryGroup]":
    art = import_art()
    return [
        art.TrajectoryGroup([r.rollout.trajectory for r in group.rollouts if r.reward is not None]) for group in groups
    ]
