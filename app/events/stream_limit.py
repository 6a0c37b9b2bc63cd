"""Limits the open streams of each caller in this process (two replicas allow twice as many)."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from learnloop_service.app.errors import TooManyRequests

STREAMS_PER_KEY = 100
_RETRY_AFTER_S = 5


class StreamPlaces:
    """Counts open streams. The limit is the same for every API key."""

    def __init__(self, per_key: int = STREAMS_PER_KEY) -> None:
        self._per_key = per_key
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, key: str) -> Iterator[None]:
        """Count one stream while the context is open. Raises TooManyRequests at the limit."""
        if self._taken[key] >= self._per_key:
            message = f"this API key has {self._per_key} streams open: close one first"
            raise TooManyRequests(message, retry_after_s=_RETRY_AFTER_S)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            self._taken += Counter()  # drops keys without streams
