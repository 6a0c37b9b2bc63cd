"""What all detectors share: when a cause was true, what the facts show, and what to change."""

from collections.abc import Mapping, Sequence

from environment.json_type import Json
from training.diagnosis.diagnosis import DiagnosisSettings, Remedy, Severity, Span
from training.diagnosis.facts import Facts

AllFacts = Sequence[Facts]
"""Facts of a run's iterations in order, from the baseline on."""


def step_before(facts: AllFacts, iteration: int) -> int:
    """Return the policy's step before an iteration, for a fork that starts before the cause."""
    return next((each.step for each in reversed(facts) if each.iteration < iteration), facts[0].step)


class Detector:
    """Detects one cause. Subclasses say when it is true, how serious it is, what the facts show, and the remedy."""

    severity = Severity.FAULT

    def __init__(self, settings: DiagnosisSettings) -> None:
        self.settings = settings
        self.config = settings.config

    def spans(self, facts: AllFacts) -> list[Span]:
        """Return when the cause was true."""
        raise NotImplementedError

    def summary(self, facts: AllFacts, span: Span) -> str:
        """Return one sentence for people."""
        raise NotImplementedError

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        """Return the figures, their bounds, and trajectory ids."""
        raise NotImplementedError

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        """Return what to change."""
        raise NotImplementedError

    def not_examined(self, facts: AllFacts) -> str | None:
        """Return why the cause cannot be examined, or None if it is."""
        return None
