"""GRPO's advantages: how much better a rollout was than the others in its group.

The engine trains on these numbers, and the service stores and displays them.
"""

import math
from collections.abc import Sequence

_ROUNDING = 1e-9
"""Differences below this share of the largest absolute reward come from rounding. Sums of parts in another order differ
by about 1e-16 of it."""


def differ(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group differ by more than rounding. If not, they teach nothing."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > _ROUNDING * max(map(abs, rewards))


def advantages(rewards: Sequence[float], *, scale: bool = True, least_spread: float = 0.0) -> list[float]:
    """Return the advantage of each reward in a group: (reward - mean) / (standard deviation + 1e-6), as in ART. All are
    0 unless the rewards `differ`. A smaller standard deviation than `least_spread` counts as that. Without `scale`, the
    differences are not divided."""
    if not differ(rewards):
        # The engine scales a step's advantages to a mean of 1, so rounding would train as much as right and wrong do.
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = max(math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)), least_spread)
    return [(reward - mean) / (deviation + 1e-6 if scale else 1.0) for reward in rewards]
