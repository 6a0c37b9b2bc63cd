"""What other scores would have changed in a run: advantages, groups with a signal, figures; and a judge's own noise.

Rewards that are only scaled or shifted change no advantage by more than the constant in its formula does
(training/advantages.py), so such changes do not matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from learnloop_service.judges.agreement import rank_correlation
from learnloop_service.training.advantages import differ

MATTERS = 1e-3
"""A difference of advantages from which on it matters. Scaling the rewards of a group changes its advantages by about
1e-6 divided by the rewards' standard deviation."""
_ROUNDING = 1e-9
"""Advantages that are nearer to 0 have no sign."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A rollout's score, and the reward, advantage and success that follow from it."""

    reward: float | None
    advantage: float | None
    success: bool | None
    score: float | None


@dataclass(frozen=True, slots=True)
class RejudgedGroup:
    """The rollouts of one scenario that were judged together, as the run scored them and as each repeat did."""

    iteration: int
    stored: Sequence[Scored]
    repeats: Sequence[Sequence[Scored]]
    """One sequence for each repeat, in the order of `stored`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the first repeat changes, in some groups."""

    rollouts: int
    """Number of rollouts."""
    flipped: float | None
    """Share of advantages whose sign differs, 0 being a sign of its own; None if none can be compared."""
    gained: int
    """Groups that had no signal and have one now: their rewards were alike."""
    lost: int
    """Groups that had a signal and have none now."""
    correlation: float | None
    """Spearman's correlation of the rewards; None if it is not defined."""
    reward: tuple[float | None, float | None]
    """Mean reward before and now."""
    success: tuple[float | None, float | None]
    """Share of successes before and now."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far a judge differs from itself."""

    deviation: float
    """Standard deviation of the scores of one rollout, pooled over rollouts."""
    icc: float | None
    """Intraclass correlation ICC(1): the share of the scores' variance that is between rollouts (Shrout and Fleiss,
    *Intraclass Correlations*, 1979); None if the scores do not vary."""
    floor: float | None
    """Share of advantages whose sign differs between two repeats, over all pairs of repeats. Fewer changes of signs
    than that are noise."""


def changes(groups: Iterable[RejudgedGroup]) -> Changes:
    """Return what the first repeat changes in these groups."""
    groups = list(groups)
    pairs = [pair for group in groups for pair in zip(group.stored, group.repeats[0], strict=True)]
    signals = [(has_signal(group.stored), has_signal(group.repeats[0])) for group in groups]
    rewards = [(old.reward, new.reward) for old, new in pairs]
    both = [(old, new) for old, new in rewards if old is not None and new is not None]
    return Changes(
        rollouts=len(pairs),
        flipped=_flipped(pairs),
        gained=sum(now and not before for before, now in signals),
        lost=sum(before and not now for before, now in signals),
        correlation=rank_correlation(both),
        reward=(_mean(old for old, _ in rewards), _mean(new for _, new in rewards)),
        success=(_mean(old.success for old, _ in pairs), _mean(new.success for _, new in pairs)),
    )


def first_changed(groups: Iterable[RejudgedGroup], tolerance: float = 0.0) -> int | None:
    """Return the first iteration in which an advantage differs by more than the tolerance; None if none does."""
    return min((group.iteration for group in groups if _differs(group, tolerance)), default=None)


def noise(groups: Iterable[RejudgedGroup]) -> Noise | None:
    """Return the judge's noise; None without at least two scores of a rollout.

    Rollouts that a repeat did not score are left out.
    """
    groups = list(groups)
    scored: list[list[float]] = []
    flips: list[float] = []
    for group in groups:
        for of_rollout in zip(*group.repeats, strict=True):
            values = [repeat.score for repeat in of_rollout if repeat.score is not None]
            if len(values) == len(of_rollout) > 1:
                scored.append(values)
        for one, other in combinations(group.repeats, 2):
            flipped = _flipped(list(zip(one, other, strict=True)))
            if flipped is not None:
                flips.append(flipped)
    if not scored:
        return None
    count = len(scored[0])
    means = [fmean(values) for values in scored]
    within = fmean(
        sum((value - mean) ** 2 for value in values) / (count - 1) for values, mean in zip(scored, means, strict=True)
    )
    icc = None
    if len(scored) > 1:
        overall = fmean(means)
        between = count * sum((mean - overall) ** 2 for mean in means) / (len(scored) - 1)
        total = between + (count - 1) * within
        icc = (between - within) / total if total else None
    return Noise(within**0.5, icc, fmean(flips) if flips else None)


def has_signal(group: Sequence[Scored]) -> bool:
    """Whether a group can be trained on: at least two of its rewards differ."""
    return differ([rollout.reward for rollout in group if rollout.reward is not None])


def _differs(group: RejudgedGroup, tolerance: float) -> bool:
    pairs = zip(group.stored, group.repeats[0], strict=True)
    return any(
        (old.advantage is None) != (new.advantage is None)
        or (old.advantage is not None and new.advantage is not None and abs(new.advantage - old.advantage) > tolerance)
        for old, new in pairs
    )


def _flipped(pairs: Sequence[tuple[Scored, Scored]]) -> float | None:
    signs = [
        _sign(old.advantage) != _sign(new.advantage)
        for old, new in pairs
        if old.advantage is not None and new.advantage is not None
    ]
    return fmean(signs) if signs else None


def _sign(advantage: float) -> int:
    return (advantage > _ROUNDING) - (advantage < -_ROUNDING)


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
