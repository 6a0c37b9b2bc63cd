"""Causes that lie in the scenarios: they repeat, or all of their rollouts end alike."""

from collections.abc import Mapping
from dataclasses import dataclass

from environment.json_type import Json
from training.diagnosis import request_limits
from training.diagnosis.detector import AllFacts, Detector, step_before
from training.diagnosis.diagnosis import Remedy, Severity, Span
from training.diagnosis.facts import GroupFacts
from training.diagnosis.share_detector import ShareDetector

_MOST_REPEATED = 0.2
"""Share of the training scenarios that may repeat the task of another one."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Ids of scenarios whose task another scenario has as well."""

    in_training: list[str]
    held_out: list[str]
    """Scenarios that are held out and trained on."""
    training: int
    """Number of training scenarios so far."""

    @property
    def contradicts(self) -> bool:
        return bool(self.held_out) or len(self.in_training) > _MOST_REPEATED * self.training


class DuplicateScenarios(Detector):
    """Scenarios repeat within the training split, or are held out and trained on."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[Span]:
        for count, each in enumerate(facts, 1):
            if self._repeated(facts[:count]).contradicts:
                return [Span(each.iteration, each.iteration)]
        return []

    def _repeated(self, facts: AllFacts) -> _Repeated:
        training = {id: task for each in facts for id, task in each.tasks.get("train", {}).items()}
        held_out = {
            id: task
            for each in facts
            for split, tasks in each.tasks.items()
            for id, task in tasks.items()
            if split != "train"
        }
        first: dict[str, str] = {}
        for id, task in training.items():
            first.setdefault(task, id)
        return _Repeated(
            [id for id, task in training.items() if first[task] != id],
            [id for id, task in held_out.items() if task in first],
            len(training),
        )

    def summary(self, facts: AllFacts, span: Span) -> str:
        found = self._repeated(facts)
        if found.held_out:
            number = len(found.held_out)
            return f"{number} held-out {_scenarios(number)} the same task as one that is trained on."
        number = len(found.in_training)
        return f"{number} of {found.training} training scenarios have the same task as another one."

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        found = self._repeated(facts)
        return {
            "repeated_in_training": found.in_training[:_SHOWN],
            "held_out_and_trained": found.held_out[:_SHOWN],
            "training_scenarios": found.training,
            "bound": _MOST_REPEATED,
        }

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        return Remedy(
            "Leave these scenarios out of the data set: held-out figures count what was learned by heart, or the same "
            "task is trained on more often than others. Nothing is left out by itself."
        )

    def not_examined(self, facts: AllFacts) -> str | None:
        return None if any(each.tasks for each in facts) else "The iterations of an earlier version kept no tasks."


class TooHard(ShareDetector):
    """Groups have no success at all."""

    severity = Severity.WARNING
    bound = 0.7
    unit = "groups"

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return (group.successes == 0, 1) if group.scored > 1 else (0, 0)

    def summary(self, facts: AllFacts, span: Span) -> str:
        return f"In {self.percent(facts, span)} of the groups no rollout succeeded, so there is little to learn from."

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        checkpoint = step_before(facts, span.first)
        if facts[-1].has_oracle and self.config.warm_start is None:
            text = "Learn from the environment's own demonstrations first (warm_start)."
            return Remedy(text, {"checkpoint": checkpoint, "warm_start": {"demonstrations": {"oracle": 64}}})
        more = min(2 * self.config.rollouts_per_group, request_limits.ROLLOUTS)
        text = (
            f"Make {more} rollouts of each scenario, so that a rare success is seen, or show the model how: warm_start."
        )
        return Remedy(text, {"checkpoint": checkpoint, "rollouts_per_group": more})


class TooEasy(ShareDetector):
    """Groups have nothing but successes."""

    bound = 0.7
    unit = "groups"

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return (group.successes == group.scored, 1) if group.scored > 1 else (0, 0)

    def summary(self, facts: AllFacts, span: Span) -> str:
        return f"In {self.percent(facts, span)} of the groups every rollout succeeded: there is little left to learn."

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        return Remedy("Stop here, or train on harder scenarios.")


def _scenarios(number: int) -> str:
    return "scenario has" if number == 1 else "scenarios have"
