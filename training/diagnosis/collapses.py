"""A step that broke the policy, which the rollouts of the next iteration show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import comb

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.collapse import CHANCE, FALL, RESTORED, Collapse, CollapseWatch, RolledOut
from learnloop_service.training.diagnosis.contradictions import lowered_rate
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts
from learnloop_service.training.diagnosis.spans import spans_while


def rolled_out(facts: Iterable[Facts]) -> Iterator[RolledOut]:
    """Yield how the rollouts ended, for each iteration that has any."""
    for iteration in facts:
        if iteration.groups and iteration.sampled_step is not None:
            went_back_to = iteration.step if RESTORED in iteration.metrics else None
            yield rolled_out_groups(iteration.iteration, iteration.sampled_step, iteration.groups, went_back_to)


def rolled_out_groups(
    iteration: int, step: int, groups: Sequence[GroupFacts], went_back_to: int | None = None
) -> RolledOut:
    """Return the shares of successful and of malformed rollouts of each group, without those that failed for other
    reasons."""
    counted = [(group, group.rollouts - group.infrastructure - group.agent_errors) for group in groups]
    success = [group.successes / group.scored for group, _ in counted if group.scored]
    malformed = [group.malformed / rollouts for group, rollouts in counted if rollouts > 0]
    weights = tuple(group.represents for group in groups)
    return RolledOut(iteration, step, success, malformed, went_back_to, weights)


class PolicyCollapsed(Detector):
    """Success fell by far from one policy to the next, or malformed rollouts rose."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        watched = CollapseWatch().all(rolled_out(facts))
        return spans_while((rollouts.iteration, collapse is not None) for rollouts, collapse in watched)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        collapse, restored = self._collapse(facts, span)
        went = "" if restored is None else f". The run went back to the weights of step {restored}"
        return f"{collapse}{went}."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        collapse, restored = self._collapse(facts, span)
        return {
            "figure": collapse.figure,
            "before": round(collapse.before, 4),
            "after": round(collapse.after, 4),
            "chance": collapse.chance,
            "bound": FALL,
            "step": collapse.step,
            "good_step": collapse.good_step,
            "restored_step": restored,
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        collapse, restored = self._collapse(facts, span)
        if restored is not None:
            return Remedy("The run continues from there with half the learning rate.")
        rate = lowered_rate(self.settings, facts, self.config.learning_rate / 2)
        text = f"Go back to the checkpoint before it, and use the learning rate {rate:g}."
        return Remedy(text, {"checkpoint": collapse.good_step, "learning_rate": rate})

    def not_examined(self, facts: AllFacts) -> str | None:
        groups = self.config.groups_per_iteration
        few = comb(2 * groups, groups) * CHANCE < 1
        return (
            f"Iterations of {counted(groups, 'group')} cannot show that a fall is more than chance; 8 can."
            if few
            else None
        )

    def _collapse(self, facts: AllFacts, span: CausePeriod) -> tuple[Collapse, int | None]:
        """Return the collapse with which the span began, and the step that the run went back to then."""
        collapse = next(
            collapse
            for rollouts, collapse in CollapseWatch().all(rolled_out(facts))
            if collapse and rollouts.iteration == span.first
        )
        restored = next(iteration.metrics.get(RESTORED) for iteration in facts if iteration.iteration == span.first)
        return collapse, None if restored is None else int(restored)
