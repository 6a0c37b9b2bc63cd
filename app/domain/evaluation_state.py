"""The states of an evaluation outside a run. They are the same as those of a run."""

from collections.abc import Mapping
from enum import StrEnum

from learnloop_service.app.domain.run_state import Move


class EvaluationStatus(StrEnum):
    """Where an evaluation is in its life cycle."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    PAUSED = "paused"
    """Its budget does not cover the next call."""
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({EvaluationStatus.COMPLETED, EvaluationStatus.FAILED, EvaluationStatus.CANCELLED})
RESUMING: Mapping[str, Move] = {
    EvaluationStatus.PAUSED: Move.RESUME,
    EvaluationStatus.FAILED: Move.RETRY,
    EvaluationStatus.CANCELLED: Move.REOPEN,
}
"""The move that queues an evaluation again, by its status. Saved results are kept; the rest is still to be done."""
