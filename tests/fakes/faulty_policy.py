"""A local policy whose training is interrupted at a named point, as by a killed process or a lost reply."""

from enum import StrEnum

from learnloop_service.training.backends.base import (
    BackendUnavailable,
    Endpoint,
    JobForgotten,
    StepConflict,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.protocol.model_facts import Reproducibility


class Fault(StrEnum):
    """The point at which training is interrupted."""

    BEFORE_POST = "before the request was sent"
    REPLY_LOST = "after the step was taken, before the reply came"
    STILL_QUEUED = "after the request was sent; the step is taken later"


class FaultyPolicy:
    """Takes a step if it is the expected one, and fails once, at `fault`. `trained` are the steps it trained from."""

    settle_timeout_s = 0.0
    reproducibility = Reproducibility(True, "It is scripted.")

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.trained: list[int] = []
        self.expected: list[int] = []
        self._queued: int | None = None

    async def step(self) -> int:
        return len(self.trained)

    def endpoint(self, step: int | None = None) -> Endpoint:
        raise AssertionError("it is only trained")

    async def submit(self, request: TrainRequest) -> str:
        expected_step = request.expected_step
        self.expected.append(expected_step)
        fault, self.fault = self.fault, None
        if fault is Fault.BEFORE_POST:
            raise BackendUnavailable(fault)
        if fault is Fault.STILL_QUEUED:
            self._queued = expected_step
            raise BackendUnavailable(fault)
        self.land()
        self._take(expected_step)
        if fault is Fault.REPLY_LOST:
            raise BackendUnavailable(fault)
        return f"job-{len(self.trained)}"

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        if job_id != f"job-{expected_step + 1}":
            raise JobForgotten(job_id)
        return TrainOutcome(expected_step + 1, await self.metrics(expected_step + 1))

    def land(self) -> None:
        """Take the queued step."""
        queued, self._queued = self._queued, None
        if queued is not None:
            self._take(queued)

    def _take(self, expected_step: int) -> None:
        if expected_step != len(self.trained):
            raise StepConflict(f"the policy is at step {len(self.trained)}, not {expected_step}")
        self.trained.append(expected_step)

    async def metrics(self, step: int) -> dict[str, float]:
        return {"loss": 1.0 / step}

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        return []
