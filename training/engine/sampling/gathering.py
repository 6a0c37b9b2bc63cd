"""Decides when a GPU prefills waiting prompts while other replies are decoded.

A pass over a few prompts takes nearly as long as one over many, most of it for launching its kernels from Python, and
nothing is decoded meanwhile. Conversations end their turns one by one, so without waiting there would be a pass for
nearly every decode step. On the other hand, rows that wait sample nothing. Both losses are smallest together when they
are equal, as with orders of goods that cost something to deliver and something to do without (Harris 1913, "How Many
Parts to Make at Once").
"""

import math
import time

MOST_S = 0.05
"""Longest time that a prompt waits for others, in seconds."""


class Gathering:
    """Lets prompts wait until the rows that they could fill have lost as much time as a pass takes."""

    def __init__(self) -> None:
        self._pass_s = math.inf
        """Duration of the shortest pass so far. Longer ones also compiled kernels or waited for the GPU."""
        self._lost_s = 0.0
        self._began_at: float | None = None
        self._seen_at = 0.0

    def passed(self, seconds: float) -> None:
        """Record how long a pass took."""
        self._pass_s = min(self._pass_s, seconds)

    def waits(self, prompts: int, active: int) -> bool:
        """Return whether `prompts` waiting prompts that could have rows now should wait longer, while `active` other
        rows are decoded. Must be called before each decode step."""
        now = time.perf_counter()
        if not prompts or not active:
            self._began_at = None
            return False
        if self._began_at is None:
            self._began_at, self._lost_s = now, 0.0
        else:
            self._lost_s += (now - self._seen_at) * prompts / (prompts + active)
        self._seen_at = now
        if self._lost_s < self._pass_s and now - self._began_at < MOST_S:
            return True
        self._began_at = None
        return False
