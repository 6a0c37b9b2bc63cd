"""GRPO's advantages: how much better a rollout was than the others in its group.

The engine trains on these numbers, and the service stores and displays them.
"""

import math
from collections.abc import Sequence


def advantages(rewards: Sequence[float], *, scale: bool = True) -> list[float]:
    """Return the advantage of each reward in a group: (reward - mean) / (standard deviation + 1e-6), as in ART. All are
    0 if the rewards are equal. Without `scale`, the differences are not divided."""
    if len(set(rewards)) < 2:
        # Rounding in the mean could turn equal rewards into a tiny signal, which normalization would amplify.
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + 1e-6 if scale else 1.0) for reward in rewards]
