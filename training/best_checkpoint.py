"""Which checkpoint of a run is the best: the one with the highest figures, or the newest that cannot be told apart from
it.

The highest is right where there are many validation scenarios, as runs of other bases than the tiny one have: simulated
(benchmarks/learning/best_checkpoint.py), it is a point worse than the newest in runs that rise to their end, and
several points better in those that fall again by less than can be shown. A few scenarios order checkpoints by chance,
and the one with the highest figures profits from it most. Of those whose success may be the same, the newest has
learned the longest. Checkpoints are compared by scenario, with the interval that the run's verdict uses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from learnloop_service.training.statistics.difference import MIN_CHANGED, difference


@dataclass(frozen=True, slots=True)
class Validation:
    """Figures of one checkpoint's sampled rollouts on the validation scenarios."""

    success: float
    """Share of the rollouts that did their task, in [0, 1]."""
    mean_reward: float
    successes: Mapping[str, float] = field(default_factory=dict)
    """Success by scenario id. Empty if it was not kept: then nothing counts as equal to it."""
    scenarios: int | None = None

    def is_higher_than(self, other: "Validation") -> bool:
        """Whether its success is higher or, if that is equal, its reward. A baseline that ended early is compared by
        its success on the scenarios that both have."""
        shared = self.successes.keys() & other.successes.keys()
        if shared and self.scenarios != other.scenarios:
            return fmean(self.successes[id] for id in shared) > fmean(other.successes[id] for id in shared)
        return (self.success, self.mean_reward) > (other.success, other.mean_reward)

    def may_equal(self, other: "Validation") -> bool:
        """Whether its difference from a higher one cannot be told from chance. Fewer than MIN_CHANGED scenarios never
        show a difference, so with them the figures decide."""
        change = difference(other.successes, self.successes)
        return change is not None and change.scenarios >= MIN_CHANGED and not change.is_shown


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best checkpoint so far, and the highest figures so far, which can be those of an earlier one."""

    step: int = 0
    highest: Validation | None = None

    def after(
        self, step: int, validation: Validation, rule: Literal["newest", "highest"] | None = None
    ) -> "BestCheckpoint":
        """Return the best checkpoint once a newer one is validated, by default by the rule `newest`.

        Comparing with the highest only is enough: while it stays, earlier comparisons with it hold, and a new highest
        is also the newest.
        """
        if self.highest is None or validation.is_higher_than(self.highest):
            return BestCheckpoint(step, validation)
        is_best = rule != "highest" and validation.may_equal(self.highest)
        return BestCheckpoint(step, self.highest) if is_best else self
