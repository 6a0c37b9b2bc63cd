"""What the iterations without rollouts learn from: demonstrations, or answers that were served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from learnloop_service.training.backends.base import Policy, StepRequest
from learnloop_service.training.journal import IterationJournal


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one iteration learns from a record."""

    request: StepRequest | None
    """None if nothing is left to train on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the iteration, in addition to those of the training."""
    left_out: Sequence[str] = ()
    """Names of what the iteration would have trained on, but cannot."""


class RunRecord(Protocol):
    """The record that a run learns from in its first iterations, one step in each."""

    @property
    def left_out(self) -> Sequence[str]:
        """Names of what no iteration can train on."""

    async def lesson(self, journal: IterationJournal, policy: Policy, step: int) -> Lesson:
        """Return what the iteration of the journal trains on, from the policy's step `step`.

        Entries that it keeps in the journal are durable before the request is sent. After a takeover it is called
        again, and the request must then be equal unless what it needs was deleted meanwhile. Raises the policy's
        errors.
        """

    async def measured(self, journal: IterationJournal, policy: Policy, step: int) -> Mapping[str, float]:
        """Return further metrics of the iteration, whose training led to `step`. Its checkpoint may still be being
        written. Raises the policy's errors."""
