"""The states of a run and the moves between them. Pure."""

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


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

TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE = frozenset(RunStatus) - TERMINAL
"""A live run holds its model: no other run may train it."""


def moves(status: RunStatus) -> frozenset[RunStatus]:
    """The states that a run may move to from `status`."""
    return _MOVES[status]


def sources(target: RunStatus) -> frozenset[RunStatus]:
    """The states from which a run may move to `target`."""
    return frozenset(status for status, moves in _MOVES.items() if target in moves)
