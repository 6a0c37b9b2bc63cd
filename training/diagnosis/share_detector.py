"""Causes that hold when the share of rollouts, calls, pairs or groups with a symptom is above a bound."""

from collections.abc import Callable, Iterable

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Severity
from learnloop_service.training.diagnosis.facts import MAX_EXAMPLES, Facts, GroupFacts
from learnloop_service.training.diagnosis.shares import SymptomShares, share_spans


class ShareDetector(Detector):
    """Detects that a larger share than `bound` shows a symptom. Subclasses override `count` if the symptom is not a
    count of rollouts in `GroupFacts`."""

    severity = Severity.NOTE
    bound: float
    symptom: str | None = None
    """Name of the counts and examples in the facts; None if subclasses count."""
    unit = "rollouts"
    """What is counted."""

    def count(self, group: GroupFacts) -> tuple[float, float]:
        """Return how many of the group's units show the symptom, and how many could show it."""
        return getattr(group, str(self.symptom)), group.rollouts

    def bound_of(self, facts: AllFacts) -> float:
        """Return the largest share that is normal for this run."""
        return self.bound

    def is_observed(self, facts: AllFacts, iteration: Facts) -> bool:
        """Return whether an iteration can show the symptom at all."""
        return True

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        """Bet on the share of each group (training/diagnosis/shares.py)."""
        observed = [
            SymptomShares(iteration.iteration, *zip(*shares, strict=True))
            for iteration in facts
            if self.is_observed(facts, iteration) and (shares := self._shares(iteration))
        ]
        return share_spans(observed, self.bound_of(facts), self.config.all_iterations)

    def _shares(self, iteration: Facts) -> list[tuple[float, float]]:
        """Return the share of each group, and how much it counts."""
        counts = [(*self.count(group), group.represents) for group in iteration.groups]
        return [(affected / units, represents) for affected, units, represents in counts if units]

    def not_examined(self, facts: AllFacts) -> str | None:
        """Return why no group could show it."""
        return None if any(map(self._shares, facts)) else self.unknown

    unknown: str | None = None
    """Why no group could show the symptom; None if that says nothing."""

    def share(self, facts: AllFacts, span: CausePeriod) -> float:
        """Return the share since the span began."""
        affected, units = self._totals(facts, span)
        return affected / units if units else 0.0

    def percent(self, facts: AllFacts, span: CausePeriod) -> str:
        """Return the share in words."""
        return f"{100 * self.share(facts, span):.0f}%"

    def _totals(self, facts: AllFacts, span: CausePeriod) -> tuple[float, float]:
        counts = [
            (*self.count(group), group.represents)
            for iteration in facts
            if iteration.iteration >= span.first
            for group in iteration.groups
        ]
        return sum(affected * weight for affected, _, weight in counts), sum(
            units * weight for _, units, weight in counts
        )

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        """Return the share since the span began, its bound, and up to five trajectories, the newest first."""
        affected, units = self._totals(facts, span)
        figures: dict[str, Json] = {
            "share": round(self.share(facts, span), 4),
            "bound": self.bound_of(facts),
            "affected": round(affected, 4),
            self.unit: round(units, 4),
        }
        if (symptom := self.symptom) is None:
            return figures
        examples = newest(facts, span, lambda iteration: iteration.examples.get(symptom, ()))
        return figures | {"trajectories": examples[:MAX_EXAMPLES]}


class ShareAboveBaseline(ShareDetector):
    """Detects a share above the baseline's plus 0.1, within 0.4 to 0.6, because a base can begin badly and recover."""

    def bound_of(self, facts: AllFacts) -> float:
        affected, units = self.count(facts[0].evaluated) if facts[0].evaluated else (0.0, 0.0)
        return round(min(max(0.4, affected / units + 0.1 if units else 0.0), 0.6), 4)


def newest(facts: AllFacts, span: CausePeriod, texts: Callable[[Facts], Iterable[str]]) -> list[str]:
    """Return the distinct texts since the span began, the newest first."""
    since = [iteration for iteration in reversed(facts) if iteration.iteration >= span.first]
    return list(dict.fromkeys(text for iteration in since for text in texts(iteration)))
