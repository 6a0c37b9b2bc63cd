"""What the sentence, the lines and the table of an improvement read from it, besides its fields."""

from collections.abc import Sequence
from dataclasses import dataclass

from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.schemas.improvements import CandidateOut, ImprovementOut


@dataclass(frozen=True, slots=True)
class Findings:
    """What can explain that nothing helped, from outside of the improvement."""

    environment: str | None = None
    """What the check of the environment says is broken; None if nothing is."""
    causes: Sequence[str] = ()
    """What the diagnosis of its runs says, the cause that explains the others first."""


def name_of(candidate: CandidateOut) -> str:
    """Return the name of a candidate's prompt or listed model; empty if neither is what it tries."""
    prompt = candidate.prompt
    if candidate.rung is Rung.PROMPT and prompt is not None:
        return prompt.sha256[:12] if prompt.name is None else f"{prompt.name}@{prompt.version}"
    return candidate.model if candidate.rung is Rung.MODEL and candidate.state is not CandidateState.SKIPPED else ""


def accepted(improvement: ImprovementOut) -> list[CandidateOut]:
    """Return the newest accepted candidate of each rung, in the order of the rungs."""
    newest = {row.rung: row for row in improvement.tried if row.state is CandidateState.ACCEPTED}
    return [newest[rung] for rung in Rung if rung in newest and rung is not Rung.AS_IT_IS]


def champion(improvement: ImprovementOut) -> CandidateOut:
    """Return the best candidate so far."""
    return improvement.tried[improvement.champion]


def is_tested(improvement: ImprovementOut) -> bool:
    """Whether there are test figures of the agent as it is and of the champion of each rung."""
    return all(row.test is not None for row in (improvement.tried[0], *accepted(improvement)))
