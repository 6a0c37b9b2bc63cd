"""What all detectors share: when a cause was true, what the facts show, and what to change."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, DiagnosisSettings, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts

AllFacts = Sequence[Facts]
"""Facts of a run's iterations in order, from the baseline on."""


class Detector(ABC):
    """Detects one cause. Subclasses say when it is true, how serious it is, what the facts show, and the remedy."""

    severity = Severity.FAULT

    def __init__(self, settings: DiagnosisSettings) -> None:
        self.settings = settings
        self.config = settings.config

    @abstractmethod
    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        """Return when the cause was true."""

    @abstractmethod
    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        """Return one sentence for people."""

    @abstractmethod
    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        """Return the figures, their bounds, and trajectory ids."""

    @abstractmethod
    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        """Return what to change."""

    def not_examined(self, facts: AllFacts) -> str | None:
        """Return why the cause cannot be examined, or None if it is."""
        return None

    def fork(self, facts: AllFacts, span: CausePeriod, text: str, **changes: Json) -> Remedy:
        """Return the remedy of a fork that starts before the cause and changes these fields of the request."""
        step = next(
            (iteration.step for iteration in reversed(facts) if iteration.iteration < span.first), facts[0].step
        )
        return Remedy(text, {"checkpoint": step, **changes})
