"""Says honestly that nothing was trained, and that no other cause is known."""

from collections.abc import Mapping, Sequence

from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.detector import AllFacts, Detector
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, DiagnosisSettings, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.diagnosis.held_out import training_success
from learnloop_service.training.diagnosis.spans import spans_while

_LASTS = 3
_SOLVED = 0.9
"""Success rate from which on a run has no signal because it has solved its task."""


class Unexplained(Detector):
    """Three iterations in a row had no training signal, and no other cause is named."""

    severity = Severity.WARNING

    def __init__(self, settings: DiagnosisSettings, others: Sequence[CausePeriod]) -> None:
        """`others` are the spans of all other causes."""
        super().__init__(settings)
        self._others = others

    def spans(self, facts: AllFacts) -> list[CausePeriod]:
        return spans_while(
            ((iteration.iteration, self._is_unexplained(iteration)) for iteration in facts), lasts=_LASTS
        )

    def _is_unexplained(self, iteration: Facts) -> bool:
        named = [span for span in self._others if span.named <= iteration.iteration]
        is_explained = any(span.cleared is None or span.cleared > iteration.iteration for span in named)
        return iteration.no_signal is not None and training_success(iteration) < _SOLVED and not is_explained

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return "Iterations in a row had no training signal, and no cause is known."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> Mapping[str, Json]:
        silent = {
            str(iteration.iteration): iteration.no_signal for iteration in facts if iteration.iteration >= span.first
        }
        return {"no_signal": dict(list(silent.items())[:5])}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Read some rollouts of these iterations, with their scores: docs/budgets.md says what each reason means."
        )
