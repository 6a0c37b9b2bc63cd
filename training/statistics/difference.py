"""The difference between two evaluations of the same scenarios, paired by scenario."""

from collections.abc import Mapping
from dataclasses import dataclass

from learnloop_service.training.statistics.bootstrap import intervals

MIN_CHANGED = 5
"""Fewest changed scenarios for which a difference is shown. Percentile intervals of fewer are too narrow: simulated
with equal success before and after, those of 6 to 12 scenarios exclude 0 in up to 14% of the cases; with this minimum
those of 6 to 64 do so in at most 7%."""


@dataclass(frozen=True, slots=True)
class SuccessDifference:
    """The later success minus the earlier one, as shares from -1 to 1."""

    scenarios: int
    """Number of scenarios that both evaluations have a result for."""
    changed: int
    """Number of those whose success differs."""
    mean: float
    low: float
    """Lower end of the 95% interval, by the paired bootstrap."""
    high: float
    """Upper end of the interval."""
    smallest: float | None
    """The smallest mean that would have been shown to be a change; None if there are too few scenarios for any."""

    @property
    def is_shown(self) -> bool:
        """Whether chance is an unlikely explanation."""
        return self.changed >= MIN_CHANGED and (self.low > 0 or self.high < 0)


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> SuccessDifference | None:
    """Compare the success of the scenarios that both have, given by scenario id. None if there are none."""
    shared = sorted(before.keys() & after.keys())
    if not shared:
        return None
    earlier, later = [before[id] for id in shared], [after[id] for id in shared]
    _, (_, interval) = intervals([earlier, later])
    changes = [abs(new - old) for old, new in zip(earlier, later, strict=True) if new != old]
    return SuccessDifference(
        len(shared),
        len(changes),
        interval.mean,
        interval.low,
        interval.high,
        _smallest(len(shared), changes, (interval.high - interval.low) / 2),
    )


def _smallest(scenarios: int, changes: list[float], half_width: float) -> float | None:
    """Return the smallest mean difference whose interval, of this width, excludes 0, and that needs MIN_CHANGED
    scenarios that change as much as these on average."""
    if scenarios < MIN_CHANGED:
        return None
    change = sum(changes) / len(changes) if changes else 1.0
    return min(1.0, max(half_width, MIN_CHANGED * change / scenarios))
