"""What the iterations without rollouts learn from: demonstrations, or answers that were served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from learnloop_service.training.backends.base import Policy, StepRequest
from learnloop_service.training.journal import IterationJournal


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one iteration learns. Without a request there is nothing left to train on."""

    request: StepRequest | None
    metrics: Mapping[str, float]
    """Metrics of the iteration, in addition to those of the training."""
    left_out: Sequence[str] = ()
    """Names of what the iteration would have trained on, but cannot."""


class RunRecord(Protocol):
    """The record that a run learns from in its first iterations, one step in each."""

    @property
    def left_out(self) -> Sequence[str]:
        """Names of what no iteration can train on."""

    async def lesson(self, journal: IterationJournal, policy: Policy, step: int) -> Lesson:
        """Return what the iteration of the journal learns from the policy's step `step`.

        What it keeps in the journal is durable before the request is sent. After a takeover it is called again, and
        must give an equal request, unless what that needs was deleted meanwhile.
        """

    async def measured(self, journal: IterationJournal, policy: Policy, step: int) -> Mapping[str, float]:
        """Return further metrics after the training, if any, which led to `step`. Its checkpoint may still be being
        written."""
        return {}

    def best_step(self, step: int) -> int | None:
        """Return the best checkpoint once the newest one is `step`; None if evaluations decide."""
        return None
