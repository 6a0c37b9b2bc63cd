"""The states of a release, its arms, and why it ended or is held."""

from enum import StrEnum


class ReleaseState(StrEnum):
    """Where a release is in its life."""

    TRIAL = "trial"
    """The candidate is compared on held-out scenarios; no user meets it yet."""
    RUNNING = "running"
    HELD = "held"
    """Users keep their arms and the share stays until somebody resumes it."""
    PROMOTED = "promoted"
    CONFIRMED = "confirmed"
    """It was promoted, and users whose windows were open then have not shown that the effect turns into harm."""
    ROLLED_BACK = "rolled_back"
    """The candidate was taken back, and every user has the stable checkpoint again."""
    OVERTAKEN = "overtaken"
    """The name was given to another checkpoint, or withdrawn, while the release was live."""


LIVE = frozenset({ReleaseState.TRIAL, ReleaseState.RUNNING, ReleaseState.HELD})
"""States in which a name can have no other release, and its checkpoints cannot be deleted."""
SPLITTING = frozenset({ReleaseState.RUNNING, ReleaseState.HELD})
"""States in which requests are divided between the two arms."""


class Arm(StrEnum):
    """The checkpoint that a user meets."""

    STABLE = "stable"
    CANDIDATE = "candidate"


class ReleaseReason(StrEnum):
    """Why a release was held, or ended without a promotion."""

    TRIAL = "trial"
    """The trial on held-out scenarios refused the candidate, or failed."""
    GUARDRAIL = "guardrail"
    BREAKER = "breaker"
    """The candidate failed for several users in a row."""
    BACKEND_AWAY = "backend_away"
    """Both arms fail: the backend is away, which says nothing about the candidate."""
    ASSIGNMENT = "assignment"
    """Units did not meet the candidate with the probability that was recorded, so no evidence can be trusted."""
    TIME = "time"
    """It reached `max_days` without a promotion."""
    PERSON = "person"
    OUTCOME = "outcome"
    """Outcomes show that the candidate is better, or not worse by more than the margin."""
    HARM = "harm"
    """Outcomes show that it is worse."""
    NO_GAIN = "no_gain"
    """Outcomes show that it is not better by what a change is worth."""
    NOVELTY = "novelty"
    """After the promotion users' second windows showed that it is worse."""
