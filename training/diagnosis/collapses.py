"""A step that broke the policy, which the rollouts of the next iteration show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import comb

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.collapse import CHANCE, FALL, RESTORED, Collapse, CollapseWatch, RolledOut
from learnloop_service.training.diagnosis.contradictions import lowered_rate
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import Remedy, Severity, Span
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts
from learnloop_service.training.diagnosis.spans import spans_while


def rolled_out(facts: Iterable[Facts]) -> Iterator[RolledOut]:
    """Yield how the rollouts of the iterations that have any ended."""
    for each in facts:
        if each.groups and each.sampled_step is not None:
            went_back_to = each.step if RESTORED in each.metrics else None
            yield RolledOut(each.iteration, each.sampled_step, *shares_of(each.groups), went_back_to)


def shares_of(groups: Iterable[GroupFacts]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the shares of successful and of malformed rollouts of each group, without those that failed for other
    reasons."""
    counted = [(each, each.rollouts - each.infrastructure - each.agent_errors) for each in groups]
    return (
        [group.successes / group.scored for group, _ in counted if group.scored],
        [group.malformed / rollouts for group, rollouts in counted if rollouts > 0],
    )


class PolicyCollapsed(Detector):
    """Success fell by far from one policy to the next, or malformed rollouts rose."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[Span]:
        shown = CollapseWatch().all(rolled_out(facts))
        return spans_while((each.iteration, found is not None) for each, found in shown)

    def summary(self, facts: AllFacts, span: Span) -> str:
        found, restored = self._shown(facts, span)
        went = "" if restored is None else f". The run went back to the weights of step {restored}"
        return f"{found}{went}."

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        found, restored = self._shown(facts, span)
        return {
            "figure": found.figure,
            "before": round(found.before, 4),
            "after": round(found.after, 4),
            "chance": found.chance,
            "bound": FALL,
            "step": found.step,
            "good_step": found.good_step,
            "restored_step": restored,
        }

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        found, restored = self._shown(facts, span)
        if restored is not None:
            return Remedy("The run continues from there with half the learning rate.")
        rate = lowered_rate(self.settings, facts, self.config.learning_rate / 2)
        text = f"Go back to the checkpoint before it, and use the learning rate {rate:g}."
        return Remedy(text, {"checkpoint": found.good_step, "learning_rate": rate})

    def not_examined(self, facts: AllFacts) -> str | None:
        groups = self.config.groups_per_iteration
        few = comb(2 * groups, groups) * CHANCE < 1
        return (
            f"Iterations of {counted(groups, 'group')} cannot show that a fall is more than chance; 8 can."
            if few
            else None
        )

    def _shown(self, facts: AllFacts, span: Span) -> tuple[Collapse, int | None]:
        """Return the collapse with which the span began, and the step that the run went back to then."""
        found = next(
            found for each, found in CollapseWatch().all(rolled_out(facts)) if found and each.iteration == span.first
        )
        restored = next(each.metrics.get(RESTORED) for each in facts if each.iteration == span.first)
        return found, None if restored is None else int(restored)
