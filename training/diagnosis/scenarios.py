"""Causes that lie in the scenarios: they repeat, or all of their rollouts end alike."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.diagnosis import request_limits
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts
from learnloop_service.training.diagnosis.share_detector import ShareDetector
from learnloop_service.training.diagnosis.shares import SymptomShares, share_spans

_MOST_REPEATED = 0.2
"""Share of the training scenarios that may repeat the task of another one."""
_SHOWN = 10


@dataclass(slots=True)
class _Repeated:
    """Ids of scenarios whose task another scenario has as well."""

    in_training: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)
    """Scenarios that are held out and trained on."""
    training: int = 0
    """Number of training scenarios so far."""

    @property
    def contradicts(self) -> bool:
        return bool(self.held_out) or len(self.in_training) > _MOST_REPEATED * self.training


class DuplicateScenarios(Detector):
    """Scenarios repeat within the training split, or are held out and trained on."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        contradicting = (iteration.iteration for iteration, repeated in _repeated(facts) if repeated.contradicts)
        return [CausePeriod(first, first) for first in islice(contradicting, 1)]

    def _all(self, facts: AllFacts) -> _Repeated:
        return [repeated for _, repeated in _repeated(facts)][-1]

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        repeated = self._all(facts)
        if repeated.held_out:
            number = len(repeated.held_out)
            return f"{number} held-out {_scenarios(number)} the same task as one that is trained on."
        number = len(repeated.in_training)
        return f"Of {counted(repeated.training, 'training scenario')}, {number:,} share a task with another one."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        repeated = self._all(facts)
        return {
            "repeated_in_training": repeated.in_training[:_SHOWN],
            "held_out_and_trained": repeated.held_out[:_SHOWN],
            "training_scenarios": repeated.training,
            "bound": _MOST_REPEATED,
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Leave these scenarios out of the data set: held-out figures count what was learned by heart, or the same "
            "task is trained on more often than others. Nothing is left out by itself."
        )

    def not_examined(self, facts: AllFacts) -> str | None:
        return (
            None
            if any(iteration.tasks for iteration in facts)
            else "The iterations of an earlier version kept no tasks."
        )


def _repeated(facts: AllFacts) -> Iterator[tuple[Facts, _Repeated]]:
    """Yield each iteration with what has been repeated up to it. The baseline has the held-out tasks."""
    repeated, ids, tasks = _Repeated(), set[str](), set[str]()
    held_out = {
        task: id
        for iteration in facts
        for split, of_split in iteration.tasks.items()
        if split != "train"
        for id, task in of_split.items()
    }
    for iteration in facts:
        for id, task in iteration.tasks.get("train", {}).items():
            if id in ids:
                continue
            if task in tasks:
                repeated.in_training.append(id)
            elif task in held_out:
                repeated.held_out.append(held_out[task])
            ids.add(id)
            tasks.add(task)
        repeated.training = len(ids)
        yield iteration, repeated


class TooHard(ShareDetector):
    """Groups have no success at all."""

    severity = Severity.WARNING
    bound = 0.7
    unit = "groups"

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return (group.successes == 0, 1) if group.scored > 1 else (0, 0)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"In {self.percent(facts, span)} of the groups no rollout succeeded, so there is little to learn from."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        if facts[-1].has_oracle and self.config.warm_start is None:
            text = "Learn from the environment's own demonstrations first (warm_start)."
            return self.fork(facts, span, text, warm_start={"demonstrations": {"oracle": 64}})
        more = min(2 * self.config.rollouts_per_group, request_limits.ROLLOUTS)
        text = (
            f"Make {more} rollouts of each scenario, so that a rare success is seen, or show the model how: warm_start."
        )
        return self.fork(facts, span, text, rollouts_per_group=more)


class TooEasy(ShareDetector):
    """Groups have nothing but successes."""

    bound = 0.7
    unit = "groups"

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return (group.successes == group.scored, 1) if group.scored > 1 else (0, 0)

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"In {self.percent(facts, span)} of the groups every rollout succeeded: there is little left to learn."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy("Stop here, or train on harder scenarios.")


def is_learned(groups: Mapping[int, Sequence[GroupFacts]], iterations: int) -> bool:
    """Return whether little is left to learn, because the diagnosis is active. `groups` are those of each iteration so
    far, and `iterations` is the number that is planned."""
    observed = [
        SymptomShares(iteration, *zip(*easy, strict=True))
        for iteration, of_iteration in sorted(groups.items())
        if (easy := [_easy(group) for group in of_iteration if group.scored > 1 and group.represents])
    ]
    spans = share_spans(observed, TooEasy.bound, iterations)
    return bool(spans) and spans[-1].cleared is None


def _easy(group: GroupFacts) -> tuple[float, float]:
    """Return whether the group had nothing but successes, 1 or 0, and how much it counts."""
    return float(group.successes == group.scored), group.represents


def _scenarios(number: int) -> str:
    return "scenario has" if number == 1 else "scenarios have"
