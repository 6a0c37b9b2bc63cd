"""What a diagnosis says: a cause with its evidence and one remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from learnloop_service.environment.json_type import Json
from learnloop_service.training.types import RunConfig


class Cause(StrEnum):
    """Why a run does not learn, in the order in which causes are named: the first active one explains later ones."""

    INFRASTRUCTURE_FAILURES = "infrastructure_failures"
    AGENT_ERRORS = "agent_errors"
    SAMPLER_IS_NOT_TRAINER = "sampler_is_not_trainer"
    WEIGHTS_UNCHANGED = "weights_unchanged"
    UNUSUAL_LEARNING_RATE = "unusual_learning_rate"
    POLICY_COLLAPSED = "policy_collapsed"
    NOTHING_VARIES = "nothing_varies"
    STALE_POLICY = "stale_policy"
    PARSER_DRIFT = "parser_drift"
    TRUNCATED_REPLIES = "truncated_replies"
    OUT_OF_TURNS = "out_of_turns"
    MALFORMED_REPLIES = "malformed_replies"
    ENVIRONMENT_FLAKY = "environment_flaky"
    TOOL_ERRORS = "tool_errors"
    JUDGE_SILENT = "judge_silent"
    JUDGE_CONSTANT = "judge_constant"
    JUDGE_DISAGREES = "judge_disagrees"
    DUPLICATE_SCENARIOS = "duplicate_scenarios"
    TOO_HARD = "too_hard"
    TOO_EASY = "too_easy"
    REWARD_HACKED = "reward_hacked"
    PART_DOMINATES = "part_dominates"
    STALE_ROLLOUTS = "stale_rollouts"
    ENTROPY_COLLAPSE = "entropy_collapse"
    STEPS_SHORTENED = "steps_shortened"
    STEPS_TOO_SMALL = "steps_too_small"
    FEW_GROUPS_DECIDE = "few_groups_decide"
    LENGTH_GROWTH = "length_growth"
    OVERFITS = "overfits"
    FORGETS = "forgets"
    UNEXPLAINED = "unexplained"


class Severity(StrEnum):
    """How serious a diagnosis is. A note is shown, but never an alarm."""

    NOTE = "note"
    WARNING = "warning"
    """Learning suffers."""
    FAULT = "fault"
    """The run does not do what it says."""

    @property
    def rank(self) -> int:
        """Position among the severities, from 0 for a note."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """What a diagnosis needs to know of the run."""

    config: RunConfig
    base_model: str
    """The base model as the run's request names it."""
    usual_learning_rate: float | None = None
    """Learning rate that suits the base's size and tuning; None if the size is unknown, or for the tiny base."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change. `request` is the body of a fork with that change; None if no setting helps."""

    text: str
    request: Mapping[str, Json] | None = None

    @property
    def how(self) -> Literal["fork", "none"]:
        """Whether the remedy is a fork."""
        return "none" if self.request is None else "fork"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause, as far as the saved iterations show it."""

    cause: Cause
    state: Literal["active", "cleared"]
    severity: Severity
    first_iteration: int
    """The iteration from which the records show it."""
    named_at_iteration: int
    """The iteration whose facts were enough to name it."""
    summary: str
    evidence: Mapping[str, Json]
    remedy: Remedy
    explained_by: Cause | None = None
    """An earlier cause that at least half of the affected rollouts share."""


@dataclass(frozen=True, slots=True)
class NotExamined:
    """A cause that could not be examined, and why."""

    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class CausePeriod:
    """A time in which a detector's cause was true: it began, was named, and possibly ended."""

    first: int
    named: int
    cleared: int | None = None
    figures: Mapping[str, Json] = field(default_factory=dict)


def current_causes(diagnoses: Iterable[Diagnosis]) -> list[Cause]:
    """Return the causes of active warnings and faults, the one that explains the others first."""
    active = {
        diagnosis.cause
        for diagnosis in diagnoses
        if diagnosis.state == "active" and diagnosis.severity is not Severity.NOTE
    }
    return [cause for cause in Cause if cause in active]
