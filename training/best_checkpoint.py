"""Which checkpoint of a run is the best: the newest that cannot be told apart from the one with the highest figures.

A few validation scenarios order checkpoints by chance, and the one with the highest figures profits from it most. Of
those whose success may be the same, the newest has learned the longest. Checkpoints are compared by scenario, with the
interval that the run's verdict uses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from training.statistics.difference import MIN_CHANGED, difference


@dataclass(frozen=True, slots=True)
class Validation:
    """Figures of one checkpoint's sampled rollouts on the validation scenarios."""

    success: float
    """Share of the rollouts that did their task, in [0, 1]."""
    mean_reward: float
    successes: Mapping[str, float] = field(default_factory=dict)
    """Success by scenario id. Empty if it was not kept: then nothing counts as equal to it."""

    def is_higher_than(self, other: "Validation") -> bool:
        """Whether its success is higher or, if that is equal, its reward."""
        return (self.success, self.mean_reward) > (other.success, other.mean_reward)

    def may_equal(self, other: "Validation") -> bool:
        """Whether its difference from a higher one cannot be told from chance. Fewer than MIN_CHANGED scenarios never
        show a difference, so with them the figures decide."""
        found = difference(other.successes, self.successes)
        return found is not None and found.scenarios >= MIN_CHANGED and not found.is_shown


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best checkpoint so far, and the highest figures so far, which can be those of an earlier one."""

    step: int = 0
    highest: Validation | None = None

    def after(self, step: int, found: Validation) -> "BestCheckpoint":
        """Return the best checkpoint once a newer one is validated.

        Comparing with the highest only is enough: while it stays, earlier comparisons with it hold, and a new highest
        is also the newest.
        """
        if self.highest is None or found.is_higher_than(self.highest):
            return BestCheckpoint(step, found)
        return BestCheckpoint(step, self.highest) if found.may_equal(self.highest) else self
