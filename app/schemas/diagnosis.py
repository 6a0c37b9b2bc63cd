"""Bodies of the responses about why a run does not learn."""

from typing import Literal

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.diagnosis import Cause, Severity


class RemedyOut(ResponseModel):
    """What to change. Nothing is changed in a run by itself."""

    text: str
    """The change in one or two sentences."""
    how: Literal["fork", "none"]
    """`fork`: `POST /runs/{run_id}/fork` with `request` makes the change. `none`: no setting helps."""
    request: dict[str, Json] | None
    """Body of the fork; null if no setting helps."""


class DiagnosisOut(ResponseModel):
    """One cause why the run does not learn, as far as its saved iterations show it."""

    cause: Cause
    """Name of the cause; docs/diagnosis.md describes each."""
    state: Literal["active", "cleared"]
    """`active`: the newest iterations show it. `cleared`: they no longer do."""
    severity: Severity
    """`fault`: the run does not do what it says. `warning`: learning suffers. `note`: not an alarm."""
    first_iteration: int
    """Iteration from which the records show it."""
    named_at_iteration: int
    """Iteration whose records were enough to name it."""
    summary: str
    """The diagnosis in one sentence."""
    evidence: dict[str, Json]
    """Figures with their bounds, and the ids of up to five trajectories."""
    remedy: RemedyOut
    """What to change."""
    explained_by: Cause | None
    """An earlier cause that explains this one; null if there is none."""


class NotExaminedOut(ResponseModel):
    """A cause that could not be examined, so its absence means nothing."""

    cause: Cause
    """Name of the cause."""
    reason: str
    """Why it could not be examined."""


class RunDiagnosis(ResponseModel):
    """Why a run does not learn, as far as its records show it."""

    cause: Cause | None
    """The current cause that explains the others; null if there is none. Notes do not count."""
    diagnoses: list[DiagnosisOut]
    """All causes that were named, also those that have been cleared, in the order in which they explain each other."""
    not_examined: list[NotExaminedOut]
    """Causes that could not be examined, and why."""
