"""GRPO's advantages: how much better a rollout was than the others of its group.

The engine trains on these numbers, and the service stores and shows them.
"""

import math
from collections.abc import Sequence


def advantages(rewards: Sequence[float], *, scale: bool = True) -> list[float]:
    """Of each reward of a group: (reward - mean) / (standard deviation + 1e-6), as ART computes it; all 0 where the
    rewards are equal. Without `scale` they are not divided."""
    if len(set(rewards)) < 2:
        # Rounding of the mean must not turn equal rewards into a tiny signal that normalisation blows up.
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + 1e-6 if scale else 1.0) for reward in rewards]
