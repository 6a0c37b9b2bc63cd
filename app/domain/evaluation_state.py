"""The states of an evaluation that was asked for by itself. Pure."""

from enum import StrEnum


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
RESUMABLE = frozenset({EvaluationStatus.PAUSED, EvaluationStatus.FAILED, EvaluationStatus.CANCELLED})
"""What was saved is kept, and the rest can still be done."""
