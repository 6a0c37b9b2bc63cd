"""What a schedule does when its run is completed, and what became of each of its due times."""

from enum import StrEnum


class Then(StrEnum):
    """What follows a completed run."""

    TRIAL = "trial"
    """The run's best checkpoint is promoted if a trial on held-out tasks shows that it is better than the champion."""
    RELEASE = "release"
    """A release gives the run's best checkpoint a share of the name's users, after such a trial."""
    NOTHING = "nothing"


class DueState(StrEnum):
    """Where a due time is in its life."""

    RUNNING = "running"
    """Its run was started, and what follows the run is still to come."""
    DONE = "done"
    SKIPPED = "skipped"
    """No run was started."""


class DueReason(StrEnum):
    """Why a due time was skipped, or why nothing followed its run."""

    LAST_RUN_LIVE = "last_run_live"
    """The schedule's last run has not ended."""
    RELEASE_LIVE = "release_live"
    """A release of the promoted name has not ended."""
    TOO_FEW_TASKS = "too_few_tasks"
    """Fewer consented tasks than `least_new_tasks` are new since the last run's draw."""
    TOO_FEW_USERS = "too_few_users"
    """The users of the drawn tasks are not in all three splits."""
    TOO_FEW_ANSWERS = "too_few_answers"
    """Too few served answers can be learned from."""
    OUTCOME_CONSTANT = "outcome_constant"
    """Nearly all of these answers have the same outcome."""
    REFUSED = "refused"
    """The run, or what was to follow it, was refused."""
    RUN_ENDED = "run_ended"
    """The run failed or was cancelled or deleted."""
    NOT_LEARNED = "not_learned"
    """The best checkpoint is the one that the run started from."""
    OVERTAKEN = "overtaken"
    """While the run learned from answers, the name was given to another checkpoint than the one that answered."""
