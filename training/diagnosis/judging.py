"""Causes that lie in the judge: it is silent, cannot tell rollouts apart, or contradicts the environment's check."""

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.detector import AllFacts
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import GroupFacts
from learnloop_service.training.diagnosis.share_detector import ShareDetector, newest

_UNCHECKED_BOUND = 0.8


class JudgeSilent(ShareDetector):
    """The judge gives finished rollouts no score."""

    severity = Severity.WARNING
    bound = 0.1

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return group.unscored, group.unscored + group.scored

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"The judge gave no score to {self.percent(facts, span)} of the finished rollouts."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        errors = newest(facts, span, lambda iteration: iteration.judge_errors)[:3]
        return super().evidence(facts, span) | {"errors": errors}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy("Mend what the evidence names, or use another judge: a rollout without a score teaches nothing.")


class JudgeConstant(ShareDetector):
    """The judge gives different rollouts the same score.

    A group counts if its rollouts end with different replies. Where the environment's own check finds them all equal as
    well, the judge may be right, and the group does not count. Without such a check, different replies may all be
    wrong, so that the bound is higher.
    """

    severity = Severity.WARNING
    bound = 0.5
    unit = "groups"
    unknown = "In no group does the environment's own check find a difference that the judge could have seen."

    def count(self, group: GroupFacts) -> tuple[float, float]:
        differs = group.pairs > 0 if group.checked else group.replies > 1
        return (group.scores == 1, 1) if differs and group.scored > 1 else (0, 0)

    def bound_of(self, facts: AllFacts) -> float:
        is_checked = any(group.checked for iteration in facts for group in iteration.groups)
        return self.bound if is_checked else _UNCHECKED_BOUND

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"In {self.percent(facts, span)} of the groups the judge gave different rollouts the same score."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Give the judge a sharper rubric, or use one that compares the rollouts of a group (ruler, for which "
            "judge.config.passes 4 averages over four orders)."
        )


class JudgeDisagrees(ShareDetector):
    """The judge's order of a group's rollouts contradicts the environment's own check."""

    severity = Severity.WARNING
    bound = 0.4
    unit = "pairs"
    unknown = "No group has both successes and failures by a check that needs no model."

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return group.misordered, group.pairs

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return (
            f"In {self.percent(facts, span)} of the pairs of a right and a wrong rollout, by the environment's own "
            "check, the judge did not prefer the right one."
        )

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Judge the run again with the environment's default judge (learnloop runs rejudge), look at the rollouts "
            "that the two rank differently, and train with the judge that you agree with."
        )
