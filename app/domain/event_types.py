"""What can happen to a run."""

from enum import StrEnum


class EventType(StrEnum):
    """What can happen. docs/events.md tells each one's data."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    """A worker claimed it: its first one, or another after a release, a loss, a pause or a retry."""
    RUN_RELEASED = "run.released"
    """Its worker stopped in good order; another one goes on."""
    RUN_PAUSED = "run.paused"
    RUN_RESUMED = "run.resumed"
    RUN_RETRIED = "run.retried"
    RUN_FORKED = "run.forked"
    CANCEL_REQUESTED = "run.cancel_requested"
    PAUSE_REQUESTED = "run.pause_requested"
    RUN_CANCELLED = "run.cancelled"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    PHASE_COMPLETED = "phase.completed"
    JOURNAL_DAMAGED = "journal.damaged"
    """Entries of the journal could not be read; what they stood for is made again."""
    ITERATION_COMPLETED = "iteration.completed"
    ITERATION_NO_SIGNAL = "iteration.no_signal"
    """It is saved, and taught nothing."""
    BUDGET_REACHED = "budget.reached"
    CHECKPOINT_PUSHED = "checkpoint.pushed"
