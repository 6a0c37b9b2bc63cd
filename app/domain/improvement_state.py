"""States of improvements and of their candidates, and the kinds of change that are tried."""

from enum import StrEnum


class ImprovementStatus(StrEnum):
    """Where an improvement is in its life, or how it ended."""

    RUNNING = "running"
    PAUSED = "paused"
    """Nothing is started until it is resumed."""
    REACHED = "reached"
    """The champion reached the target on the validation tasks."""
    BEST_SO_FAR = "best_so_far"
    """Everything was tried, and the champion is better than what there was, or no target was given."""
    BUDGET = "budget"
    """What is left of the budget does not suffice for the next job."""
    NOTHING_HELPS = "nothing_helps"
    """Everything was tried, and nothing was shown to be better."""
    CANCELLED = "cancelled"
    FAILED = "failed"


LIVE = frozenset({ImprovementStatus.RUNNING, ImprovementStatus.PAUSED})
CONTINUABLE = frozenset(ImprovementStatus) - LIVE - {ImprovementStatus.FAILED}
"""States from which `continue` resumes the improvement, with another target or budget."""


class Rung(StrEnum):
    """Kind of change, in the order in which they are tried."""

    AS_IT_IS = "as_it_is"
    PROMPT = "prompt"
    MODEL = "model"
    IMITATION = "imitation"
    GRPO = "grpo"


class CandidateState(StrEnum):
    """Where a candidate is in its life."""

    PROPOSED = "proposed"
    SCREENING = "screening"
    """It does training tasks."""
    MEASURING = "measuring"
    """It does validation tasks."""
    TRAINING = "training"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    """It was not shown to be better."""
    UNREACHABLE = "unreachable"
    """Its prompt did not reach the model."""
    SKIPPED = "skipped"
    FAILED = "failed"


IN_PROGRESS = frozenset({CandidateState.SCREENING, CandidateState.MEASURING, CandidateState.TRAINING})
