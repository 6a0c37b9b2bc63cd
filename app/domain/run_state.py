"""The states of a run, the moves between them, and what its owner may ask for. Pure."""

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What its owner may do to a run."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    FORK = "fork"
    DELETE = "delete"


_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.FAILED, RunStatus.CANCELLED}),
    # Back to queued: its worker stopped, and another one goes on.
    RunStatus.RUNNING: frozenset(
        {RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.PAUSED: frozenset({RunStatus.QUEUED, RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    # A retry goes on from the last iteration that was saved.
    RunStatus.FAILED: frozenset({RunStatus.QUEUED}),
    RunStatus.CANCELLED: frozenset(),
}
_VERBS: dict[RunStatus, frozenset[Verb]] = {
    RunStatus.QUEUED: frozenset({Verb.CANCEL, Verb.PAUSE}),
    RunStatus.RUNNING: frozenset({Verb.CANCEL, Verb.PAUSE, Verb.FORK}),
    RunStatus.PAUSED: frozenset({Verb.CANCEL, Verb.RESUME, Verb.FORK}),
    RunStatus.COMPLETED: frozenset({Verb.FORK, Verb.DELETE}),
    RunStatus.FAILED: frozenset({Verb.RETRY, Verb.FORK, Verb.DELETE}),
    # Cancelling it again changes nothing, and tells so.
    RunStatus.CANCELLED: frozenset({Verb.CANCEL, Verb.FORK, Verb.DELETE}),
}

TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE = frozenset(RunStatus) - TERMINAL
"""A live run holds its model: no other run may train it."""


def moves(status: RunStatus) -> frozenset[RunStatus]:
    """The states that a run may move to from `status`."""
    return _MOVES[status]


def sources(target: RunStatus) -> frozenset[RunStatus]:
    """The states from which a run may move to `target`."""
    return frozenset(status for status, targets in _MOVES.items() if target in targets)


def allowed(status: RunStatus) -> list[Verb]:
    """What may be asked for of a run in that state, in the order of `Verb`."""
    return [verb for verb in Verb if verb in _VERBS[status]]
