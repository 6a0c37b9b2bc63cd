"""The states of a run and the moves between them. Pure."""

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED}),
    # Back to queued: the service stopped before the run had done anything.
    RunStatus.RUNNING: frozenset({RunStatus.QUEUED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}

TERMINAL = frozenset(status for status, moves in _MOVES.items() if not moves)
LIVE = frozenset(RunStatus) - TERMINAL
"""A live run holds its model: no other run may train it."""


def sources(target: RunStatus) -> frozenset[RunStatus]:
    """The states from which a run may move to `target`."""
    return frozenset(status for status, moves in _MOVES.items() if target in moves)
