"""The states of a run, the moves between them, and what its owner can ask for.

Moves are defined only here: `app/claims/moves.py` turns a move into an UPDATE from the move's source states.
Evaluations have the same states and make the same moves.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, unique


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE = frozenset(RunStatus) - TERMINAL
"""States in which a run holds its model, so that no other run can train it."""


@unique
class Move(Enum):
    """A change of a run's status: from any of `sources` to `target`."""

    CLAIM = {RunStatus.QUEUED, RunStatus.RUNNING}, RunStatus.RUNNING
    """A worker takes the run; a running one only after its worker's lease has expired."""
    GIVE_UP = {RunStatus.QUEUED, RunStatus.RUNNING}, RunStatus.FAILED
    """Made instead of a claim after too many claims without progress."""

    # Made by the worker that holds the lease:
    RELEASE = {RunStatus.RUNNING}, RunStatus.QUEUED
    """The worker stops, and any worker can take over."""
    SUSPEND = {RunStatus.RUNNING}, RunStatus.PAUSED
    """The owner requested it, the budget is reached, or the backend is unavailable."""
    COMPLETE = {RunStatus.RUNNING}, RunStatus.COMPLETED
    FAIL = {RunStatus.RUNNING}, RunStatus.FAILED
    STOP = {RunStatus.RUNNING}, RunStatus.CANCELLED
    """The owner requested it."""

    # Made by the owner while no worker holds the run:
    CANCEL = {RunStatus.QUEUED, RunStatus.PAUSED}, RunStatus.CANCELLED
    PAUSE = {RunStatus.QUEUED}, RunStatus.PAUSED
    RESUME = {RunStatus.PAUSED}, RunStatus.QUEUED
    RETRY = {RunStatus.FAILED}, RunStatus.QUEUED
    """The run continues after the last saved iteration."""
    REOPEN = {RunStatus.CANCELLED}, RunStatus.QUEUED
    """A move of evaluations only: saved results are kept, and the rest is done now."""

    def __init__(self, sources: set[RunStatus], target: RunStatus) -> None:
        self.sources = frozenset(sources)
        self.target = target


class Verb(StrEnum):
    """An action that the owner of a run can request."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    FORK = "fork"
    DELETE = "delete"


_ACCEPTED_IN: Mapping[Verb, frozenset[RunStatus]] = {
    # For a running run, the worker is asked to stop or suspend it. Cancelling a cancelled run changes nothing.
    Verb.CANCEL: Move.CANCEL.sources | {RunStatus.RUNNING, RunStatus.CANCELLED},
    Verb.PAUSE: Move.PAUSE.sources | {RunStatus.RUNNING},
    Verb.RESUME: Move.RESUME.sources,
    Verb.RETRY: Move.RETRY.sources,
    Verb.FORK: frozenset(RunStatus) - {RunStatus.QUEUED},
    Verb.DELETE: TERMINAL,
}


def allowed(status: RunStatus) -> list[Verb]:
    """Return the actions that a run in this state accepts, in the order of `Verb`."""
    return [verb for verb in Verb if status in _ACCEPTED_IN[verb]]
