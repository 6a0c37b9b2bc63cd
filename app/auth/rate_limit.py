"""Limits the request rate: a token bucket per caller, in this process (two replicas allow twice as much)."""

import time
from collections.abc import Callable

_MOST_CALLERS = 10_000


class CallerRateLimit:
    """Allows each caller `per_s` sustained requests per second, and bursts of `burst`."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens and the time when they were counted, by caller. Only existing keys get here, but sessions come and
        go."""

    def take(self, who: str) -> float:
        """Take a token. Returns 0.0, or the seconds until one is available."""
        now = self._clock()
        tokens, counted_at = self._buckets.get(who, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - counted_at) * self._per_s)
        let_through = tokens >= 1
        if len(self._buckets) >= _MOST_CALLERS:
            self._buckets.clear()
        self._buckets[who] = (tokens - let_through, now)
        return 0.0 if let_through else (1 - tokens) / self._per_s
