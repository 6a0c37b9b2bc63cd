"""Limits how often a client can try wrong keys, because each one costs a database query."""

import time
from collections.abc import Callable

_BURST = 30
_MOST_CLIENTS = 10_000


class FailedKeys:
    """Allows each client `per_minute` wrong keys in the long run, and bursts of 30, counted in this process."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / 60
        self._clock = clock
        self._failed: dict[str, tuple[float, float]] = {}
        """Number of failures and time of the last one, by client. The clients with the newest failures come last."""

    def wait_s(self, client: str) -> float:
        """Return the seconds until the client can try another key; 0.0 means now."""
        return max(0.0, (self._count(client) + 1 - _BURST) / self._per_s)

    def note(self, client: str) -> None:
        """Record that the client tried a wrong key."""
        count = self._count(client) + 1
        self._failed.pop(client, None)
        self._failed[client] = (count, self._clock())
        if len(self._failed) > _MOST_CLIENTS:
            del self._failed[next(iter(self._failed))]

    def _count(self, client: str) -> float:
        count, at = self._failed.get(client, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * self._per_s)
