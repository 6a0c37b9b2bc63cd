"""Notices a step that broke the policy, by the rollouts of the next iteration.

The rollouts of two iterations are compared whose policies differ. A fall counts if it is deep, and if chance does not
explain it: had the step changed nothing, each way to divide the groups of both iterations among the two would be
equally likely, so the share of the divisions with such a fall is its probability (an exact permutation test). Whole
groups are exchanged, because the rollouts of a scenario resemble each other, and scenarios are drawn in random order,
so that neither their number nor unequal difficulty makes an alarm.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import Literal, Self

OnCollapse = Literal["step_back", "pause", "continue"]
"""What is done then: go back to the weights before the step, pause the run, or only name it."""
OUTDATED = "outdated_rollouts"
"""Training metric: the number of rollouts that taught nothing, because the run had left their policy."""
FALL = 0.3
"""Least fall of success, or rise of malformed rollouts."""
CHANCE = 1e-4
"""Highest probability of such a fall without a cause. Eight groups are the fewest that can show it."""
RESTORED = "restored_step"
"""Training metric: the step whose weights the iteration restored in place of training."""
MOST_RESTORED = 2
"""Number of times that a run goes back before it pauses as well."""
_MOST_GROUPS = 32
"""Number of groups of each iteration that the test exchanges, spread evenly: more take long and show nothing else."""
_LEVELS = 8
"""The test rounds the share of a group to this many parts."""


@dataclass(frozen=True, slots=True)
class RolledOut:
    """How the training rollouts of an iteration ended. Shares are those of each group."""

    iteration: int
    sampled_step: int
    """Step of the policy that sampled them."""
    success: Sequence[float]
    malformed: Sequence[float]
    went_back_to: int | None = None
    """Newest step, if the iteration made it from the weights of an earlier one in place of training."""
    weights: Sequence[float] = ()
    """How much each group counts, if they do not count alike and all have both shares."""

    def mean(self, shares: Sequence[float]) -> float:
        """Return the weighted mean of the shares."""
        return fmean(shares, self.weights if len(self.weights) == len(shares) else None)


@dataclass(frozen=True, slots=True)
class Collapse:
    """A fall from one iteration's rollouts to another's. Shares are means over groups."""

    iteration: int
    """The iteration whose rollouts show it."""
    step: int
    """The step that broke the policy."""
    good_step: int
    """The step of the policy before."""
    figure: Literal["success", "malformed"]
    before: float
    after: float
    chance: float
    is_new: bool
    """Whether the iteration before did not show it yet."""

    def __str__(self) -> str:
        what = "success fell" if self.figure == "success" else "malformed rollouts rose"
        return f"Since step {self.step}, {what} from {100 * self.before:.0f}% to {100 * self.after:.0f}%"


class CollapseWatch:
    """Compares the rollouts of each iteration of a run with the last ones that were good."""

    def __init__(self) -> None:
        self.restored = 0
        """How often the run has gone back."""
        self._good: RolledOut | None = None
        self._good_step = 0
        self._valid_from = 0
        self._is_collapsed = False

    @classmethod
    def of(cls, iterations: Iterable[RolledOut]) -> Self:
        """Return the watch after these iterations."""
        watch = cls()
        for _ in watch.all(iterations):
            pass
        return watch

    def all(self, iterations: Iterable[RolledOut]) -> Iterator[tuple[RolledOut, Collapse | None]]:
        """Yield each of a run's iterations with the collapse that it shows."""
        for iteration in iterations:
            yield iteration, self.add(iteration)
            if iteration.went_back_to is not None:
                self.went_back(iteration.went_back_to)

    @property
    def is_back(self) -> bool:
        """Whether the newest step has the weights of the last good one, so that no collapse lasts."""
        return not self._is_collapsed

    def is_outdated(self, sampled_step: int) -> bool:
        """Return whether rollouts were sampled before the run went back, from a policy that it left."""
        return sampled_step < self._valid_from

    def add(self, iteration: RolledOut) -> Collapse | None:
        """Take the next iteration, and return the collapse that its rollouts show. A fall between rollouts of the same
        weights has another cause and does not count."""
        if self.is_outdated(iteration.sampled_step):
            return None
        fall = None
        if self._good is not None and self._good_step != iteration.sampled_step:
            fall = _fall("success", self._good, iteration) or _fall("malformed", self._good, iteration)
        if fall is None:
            self._good, self._good_step, self._is_collapsed = iteration, iteration.sampled_step, False
            return None
        is_new, self._is_collapsed = not self._is_collapsed, True
        return Collapse(iteration.iteration, iteration.sampled_step, self._good_step, *fall, is_new)

    def went_back(self, step: int) -> None:
        """Note that the newest `step` has the weights of the last good one."""
        self.restored += 1
        self._good_step = self._valid_from = step
        self._is_collapsed = False


def pause_reason(iterations: Iterable[RolledOut], iteration: int, on_collapse: OnCollapse) -> str | None:
    """Return why the run pauses after `iteration`, the last of these; None if it does not."""
    watch = CollapseWatch()
    collapses = [
        collapse
        for rollouts, collapse in watch.all(iterations)
        if collapse and rollouts.iteration == iteration and collapse.is_new
    ]
    if not collapses or on_collapse == "continue":
        return None
    reason = f"{collapses[0]}, with step {collapses[0].good_step} as the last good one"
    if on_collapse == "pause":
        return f"{reason} (on_collapse)"
    if not watch.is_back:
        return f"{reason}, and the backend does not go back to it (on_collapse)"
    if watch.restored <= MOST_RESTORED:
        return None
    return f"{reason}: the run has gone back {watch.restored} times (on_collapse)"


_Fall = tuple[Literal["success", "malformed"], float, float, float]
"""The figure, its means before and after, and the probability of such a fall without a cause."""


def _fall(figure: Literal["success", "malformed"], good: RolledOut, latest: RolledOut) -> _Fall | None:
    """Compare the weighted means. Chance exchanges groups as they are: those drawn more often weigh less."""
    before, after = (getattr(iteration, figure) for iteration in (good, latest))
    if not before or not after:
        return None
    old, new = good.mean(before), latest.mean(after)
    sign = 1 if figure == "success" else -1
    if sign * (old - new) < FALL:
        return None
    chance = chance_of_fall([sign * share for share in before], [sign * share for share in after])
    return (figure, old, new, chance) if chance < CHANCE else None


def chance_of_fall(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the share of all divisions of the values, into as many as there are of each, in which the sum of the
    second part is as low as it is."""
    old, new = ([round(_LEVELS * share) for share in _spread(values)] for values in (before, after))
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in new)]
    """Number of ways to get each sum, by the number of chosen values."""
    for value in (*old, *new):
        for chosen in range(len(new), 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + value] += count
    return sum(count for total, count in ways[-1].items() if total <= sum(new)) / comb(len(old) + len(new), len(new))


def _spread(values: Sequence[float]) -> list[float]:
    count = min(len(values), _MOST_GROUPS)
    return [values[index * len(values) // count] for index in range(count)]
