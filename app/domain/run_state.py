"""The states of a run, the moves between them, and what its owner may ask for. Pure.

This is the one table of both: `app/claims/moves.py` turns a move into the statement that makes it, which names its
sources. Evaluations have the same states and make the same moves.
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
"""A live run holds its model: no other run may train it."""


@unique
class Move(Enum):
    """A change of a run's status: from any of `sources` to `target`."""

    CLAIM = {RunStatus.QUEUED, RunStatus.RUNNING}, RunStatus.RUNNING
    """A worker takes the run; a running one only after its worker's lease has lapsed."""
    GIVE_UP = {RunStatus.QUEUED, RunStatus.RUNNING}, RunStatus.FAILED
    """Instead of a claim, when too many claims of the run led to nothing."""

    # By the worker that holds the lease:
    RELEASE = {RunStatus.RUNNING}, RunStatus.QUEUED
    """It stops, and any worker may continue."""
    SUSPEND = {RunStatus.RUNNING}, RunStatus.PAUSED
    """The owner asked for it, the budget is reached, or the backend is unavailable."""
    COMPLETE = {RunStatus.RUNNING}, RunStatus.COMPLETED
    FAIL = {RunStatus.RUNNING}, RunStatus.FAILED
    STOP = {RunStatus.RUNNING}, RunStatus.CANCELLED
    """The owner asked for it."""

    # By the owner, while no worker holds the run:
    CANCEL = {RunStatus.QUEUED, RunStatus.PAUSED}, RunStatus.CANCELLED
    PAUSE = {RunStatus.QUEUED}, RunStatus.PAUSED
    RESUME = {RunStatus.PAUSED}, RunStatus.QUEUED
    RETRY = {RunStatus.FAILED}, RunStatus.QUEUED
    """The run continues after the last iteration that was saved."""
    REOPEN = {RunStatus.CANCELLED}, RunStatus.QUEUED
    """Only of evaluations: what was saved is kept, and the rest can still be done."""

    def __init__(self, sources: set[RunStatus], target: RunStatus) -> None:
        self.sources = frozenset(sources)
        self.target = target


class Verb(StrEnum):
    """What its owner may do to a run."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    FORK = "fork"
    DELETE = "delete"


_ACCEPTED_IN: Mapping[Verb, frozenset[RunStatus]] = {
    # The worker of a running run is asked to stop or suspend it. Cancelling a cancelled run changes nothing.
    Verb.CANCEL: Move.CANCEL.sources | {RunStatus.RUNNING, RunStatus.CANCELLED},
    Verb.PAUSE: Move.PAUSE.sources | {RunStatus.RUNNING},
    Verb.RESUME: Move.RESUME.sources,
    Verb.RETRY: Move.RETRY.sources,
    Verb.FORK: frozenset(RunStatus) - {RunStatus.QUEUED},
    Verb.DELETE: TERMINAL,
}


def allowed(status: RunStatus) -> list[Verb]:
    """What may be asked for of a run in that state, in the order of `Verb`."""
    return [verb for verb in Verb if status in _ACCEPTED_IN[verb]]
