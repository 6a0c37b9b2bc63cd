"""Warnings about rollouts that were lost for reasons that are not the agent's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def lost_warnings(iterations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings about a run's newest iterations, given in order."""
    concerned = [iteration for iteration in iterations if iteration["lost_rollouts"]]
    if not concerned:
        return []
    kinds = Counter[str]()
    for iteration in concerned:
        kinds.update(iteration["lost_rollouts"])
    counts = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
    return [
        f"Rollouts were lost for reasons that are not the agent's ({counts}), the last ones in iteration "
        f"{concerned[-1]['iteration']}: the same run without these losses trains other weights."
    ]
