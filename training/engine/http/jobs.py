"""Training jobs and their events in the terms of the hosted training protocol, for the event loop."""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog

from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.engine.computing import Computing, ScoredSequences, Steps, TrainingTask
from learnloop_service.training.engine.engine import StepConflict, TrainResult
from learnloop_service.training.engine.registry.model_record import Target, UnknownModel
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.protocol.model_facts import MeasuredToken

log = structlog.get_logger(__name__)

KEPT_JOBS = 1000
"""Number of finished jobs that are remembered."""


class UnknownJob(Exception):
    """There is no training job with that id."""


class UnknownEvent(Exception):
    """The job has no event with that id."""


class JobStatus(StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job. Types are training_started, progress, gradient_step, trained (the step can be sampled, and its
    checkpoint is being written), training_ended and training_failed; ART ignores progress and trained."""

    id: str
    type: str
    data: dict[str, Any]


@dataclass(slots=True)
class Job:
    """A training job. `steps` is the number of gradient_step events that it will have if it trains."""

    id: str
    model_id: str
    steps: int
    expected_step: int | None = None
    status: JobStatus = JobStatus.QUEUED
    events: list[JobEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    result: TrainResult | None = None
    """The result, once it is completed."""
    warnings: tuple[str, ...] = ()
    """Why it teaches less than its sender may expect."""

    @property
    def finished(self) -> bool:
        """Whether there will be no more events."""
        return self.status in (JobStatus.COMPLETED, JobStatus.FAILED)

    def add(self, kind: str, data: dict[str, Any]) -> None:
        """Append an event and wake waiting readers."""
        self.events.append(JobEvent(f"{self.id}-{len(self.events):06d}", kind, data))
        self.changed.set()
        self.changed = asyncio.Event()

    def after(self, event_id: str | None) -> list[JobEvent]:
        """Return the events after that one. Raises UnknownEvent."""
        if event_id is None:
            return list(self.events)
        for number, event in enumerate(self.events):
            if event.id == event_id:
                return self.events[number + 1 :]
        raise UnknownEvent(f"job {self.id} has no event {event_id!r}")

    async def wait(self, event_id: str | None, wait_s: float) -> list[JobEvent]:
        """Return the events after that one, waiting up to `wait_s` seconds if there are none yet."""
        events = self.after(event_id)
        if not events and not self.finished and wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.changed.wait()
            events = self.after(event_id)
        return events


class Jobs:
    """All jobs of this process, oldest first."""

    def __init__(self, compute: Computing) -> None:
        self._compute = compute
        self._jobs: dict[str, Job] = {}

    def get(self, job_id: str) -> Job:
        """Return the job with that id. Raises UnknownJob."""
        if job_id not in self._jobs:
            raise UnknownJob(f"no training job {job_id!r}")
        return self._jobs[job_id]

    def pending(self, model_id: str) -> Job | None:
        """Return the first unfinished job of a model."""
        return next((job for job in self._jobs.values() if job.model_id == model_id and not job.finished), None)

    def measured(self, model_id: str, step: int) -> tuple[MeasuredToken, ...]:
        """Return the tokens at which the training of that step was measured; none if this process did not train it."""
        for job in reversed(self._jobs.values()):
            if job.model_id == model_id and job.result is not None and job.result.step == step:
                return job.result.measured
        return ()

    async def score(self, target: Target, sequences: Sequence[TokenSequence]) -> Sequence[Sequence[float]]:
        """Score sequences by a checkpoint, in turn with the trainings. Raises UnknownModel for a base model, and the
        errors of Engine.score."""
        if target.model is None:
            raise UnknownModel(f"{target.key} is not a trainable model")
        loop, ends = asyncio.get_running_loop(), asyncio.Queue[TrainResult | Exception]()
        steps, tell = ScoredSequences(target.model.id, target, sequences), loop.call_soon_threadsafe
        self._compute.train(TrainingTask(steps, lambda: None, lambda _: None, lambda end: tell(ends.put_nowait, end)))
        if isinstance(outcome := await ends.get(), Exception):
            raise outcome
        return outcome.logprobs

    def submit(self, job: Job, steps: Steps) -> Job:
        """Queue a training for the job. Raises EngineStopped."""
        loop = asyncio.get_running_loop()

        def run_on_loop(function: Any, *arguments: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(function, *arguments)

        self._compute.train(
            TrainingTask(
                steps,
                on_start=lambda: run_on_loop(_started, job),
                on_progress=lambda progress: run_on_loop(_progressed, job, progress),
                on_end=lambda outcome: run_on_loop(_ended, job, outcome),
            )
        )
        self._jobs[job.id] = job
        finished = [other.id for other in self._jobs.values() if other.finished]
        for job_id in finished[: max(0, len(finished) - KEPT_JOBS)]:
            del self._jobs[job_id]
        return job


def new_job(model_id: str, steps: int, expected_step: int | None, warnings: Sequence[str] = ()) -> Job:
    """Create a job without queueing it."""
    return Job(f"job-{secrets.token_hex(8)}", model_id, steps, expected_step, warnings=tuple(warnings))


def _started(job: Job) -> None:
    job.status = JobStatus.RUNNING
    job.add("training_started", {"num_sequences": job.steps})


def _progressed(job: Job, progress: StepProgress) -> None:
    if progress.trained is not None:
        job.add("trained", {"step": progress.trained, "metrics": progress.metrics})
    elif progress.metrics is not None:
        job.add("gradient_step", progress.metrics)
    elif progress.total:
        job.add("progress", {"done": progress.finished, "total": progress.total})


def _ended(job: Job, outcome: TrainResult | Exception) -> None:
    if isinstance(outcome, TrainResult):
        job.status, job.result = JobStatus.COMPLETED, outcome
        job.add("training_ended", {"step": outcome.step, "trained": outcome.trained, "metrics": outcome.metrics})
        return
    job.status = JobStatus.FAILED
    code = "step_conflict" if isinstance(outcome, StepConflict) else _snake_case(type(outcome).__name__)
    log.warning("training job failed", job=job.id, model_id=job.model_id, error=str(outcome), exc_info=outcome)
    job.add("training_failed", {"error_message": str(outcome) or type(outcome).__name__, "code": code})


def _snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
