"""Causes that lie in the reward: it rises without success, or one part of it decides everything."""

from collections.abc import Sequence
from statistics import fmean

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.detector import AllFacts
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts
from learnloop_service.training.diagnosis.held_out import is_rising
from learnloop_service.training.diagnosis.share_detector import ShareDetector

_COMPARED = 3
"""Number of iterations at the beginning and at the end that are compared."""
_HIGHEST_BOUND = 0.9


def _failures(group: GroupFacts) -> tuple[float, float]:
    """Return the rollouts without success, by the environment's own check where there is one."""
    if group.checked:
        return group.checked - group.true_successes, group.checked
    return group.scored - group.successes, group.scored


class RewardHacked(ShareDetector):
    """The reward rises, and success falls."""

    severity = Severity.WARNING

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return _failures(group)

    def bound_of(self, facts: AllFacts) -> float:
        groups = [group for iteration in _rewarded(facts)[:_COMPARED] for group in iteration.groups]
        units = sum(_failures(group)[1] * group.represents for group in groups)
        before = sum(_failures(group)[0] * group.represents for group in groups) / units if units else 0.0
        return round(min(before + 0.1, _HIGHEST_BOUND), 4)

    def is_observed(self, facts: AllFacts, iteration: Facts) -> bool:
        """Bet only on iterations at which the reward has risen by half of its standard deviation."""
        rewarded = [earlier for earlier in _rewarded(facts) if earlier.iteration <= iteration.iteration]
        deviations = [earlier.rewards.deviation for earlier in rewarded[:_COMPARED] if earlier.rewards]
        return len(rewarded) > _COMPARED and _rise(rewarded) > 0.5 * fmean(deviations)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return (
            f"The mean reward rose by {_rise(_rewarded(facts)):.2f}, and {self.percent(facts, span)} of the rollouts "
            "have no success, more than at first."
        )

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        rises = _rises(_rewarded(facts))
        most = max(rises, key=lambda name: rises[name], default=None)
        return super().evidence(facts, span) | {
            "reward_rose_by": round(_rise(_rewarded(facts)), 4),
            "part": most,
            "parts": rises,
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        rises = _rises(_rewarded(facts))
        part = max(rises, key=lambda name: rises[name], default="score")
        return Remedy(
            f"Look at how the part {part!r} of the reward is earned without doing the job, mend it or the judge, and "
            "fork from the best checkpoint."
        )


class PartDominates(ShareDetector):
    """One part decides nearly all differences between the rewards of a group, and success does not rise."""

    bound = 0.8
    unit = "groups"
    unknown = "The reward has a single part that varies."

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return (min(group.dominance / group.variance, 1.0), 1) if group.variance else (0, 0)

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        return [] if is_rising(facts) else super().spans(facts)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"One part of the reward explains {self.percent(facts, span)} of its differences within a group."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy("See whether the other parts are worth their weight. By itself this is no fault.")


def _rewarded(facts: AllFacts) -> list[Facts]:
    return [iteration for iteration in facts if iteration.rewards is not None]


def _mean(rewarded: Sequence[Facts]) -> float:
    return fmean(iteration.rewards.mean for iteration in rewarded if iteration.rewards)


def _rise(rewarded: Sequence[Facts]) -> float:
    """Return the mean reward of the last iterations minus that of the first ones."""
    return _mean(rewarded[-_COMPARED:]) - _mean(rewarded[:_COMPARED]) if rewarded else 0.0


def _rises(rewarded: Sequence[Facts]) -> dict[str, float]:
    """Return the rise of each part of the reward, as `_rise` measures it."""
    names = {name for iteration in rewarded if iteration.rewards for name in iteration.rewards.parts}
    return {
        name: round(_part(rewarded[-_COMPARED:], name) - _part(rewarded[:_COMPARED], name), 4) for name in sorted(names)
    }


def _part(rewarded: Sequence[Facts], name: str) -> float:
    return fmean(iteration.rewards.parts.get(name, 0.0) for iteration in rewarded if iteration.rewards)
