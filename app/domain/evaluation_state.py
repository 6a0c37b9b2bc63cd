"""The states of an evaluation that was asked for by itself, which are those of a run. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from app.domain.run_state import Move


class EvaluationStatus(StrEnum):
    """Where an evaluation is in its life."""

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
"""How an evaluation is queued again, by its status. What was saved is kept, and the rest can still be done."""
