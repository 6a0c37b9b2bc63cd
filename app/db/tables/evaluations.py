"""Comparisons of models on the same scenarios."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, EventRow
from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.environment.json_type import Json

_EVALUATION_STATES = ", ".join(sorted(f"'{status}'" for status in EvaluationStatus))


class EvaluationJob(Claimable):
    """A comparison of models on the same scenarios, outside a run. Its rollouts are stored as trajectories."""

    __tablename__ = "evaluation_job"
    __table_args__ = (
        CheckConstraint(f"status IN ({_EVALUATION_STATES})", name="status"),
        Index("ix_evaluation_job_project_id", "project", "id"),
        Index("ix_evaluation_job_project_claimed_at", "project", "claimed_at"),
        Index("ix_evaluation_job_to_publish", "finished_at", postgresql_where=text("published ->> 'state' = 'due'")),
        Index("ix_evaluation_job_trajectory_id", "trajectory_id"),
        Index("ix_evaluation_job_run_id", "run_id"),
        Index("ix_evaluation_job_open", "created_at", postgresql_where=text("status IN ('queued', 'running')")),
    )

    request: Mapped[dict[str, Json]]
    """The accepted request with all defaults filled in; see app/domain/stored_evaluation.py."""
    done: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of rollouts that have been judged."""
    total: Mapped[int]
    judge: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """What the judge's calls cost so far: requests, tokens, dollars."""
    driven_s: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Total time for which workers have driven it, in seconds."""
    lost: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """Usage of work that was lost before it was saved: `prompt_tokens`, `completion_tokens`, `usd`."""
    report: Mapped[dict[str, Json] | None]
    """The results, written when it completes."""
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Number of its latest event."""
    pruned: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """Which of its details were deleted because of their age, and when."""
    trajectory_id: Mapped[str | None] = mapped_column(
        Text, ForeignKey("trajectory.id", ondelete="CASCADE", use_alter=True)
    )
    """The recorded rollout that a what-if continues; None for any other evaluation."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """The run whose rollouts are judged again; None for any other evaluation."""
    published: Mapped[dict[str, Json] | None]
    """State of publishing to Weave: `state` and the fields that belong to it; None if publishing was not requested."""


class EvaluationEvent(EventRow):
    """What happened to an evaluation: append-only, numbered from 1 without gaps."""

    __tablename__ = "evaluation_event"

    evaluation_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)


class RejudgedRollout(Base):
    """What another judge made of a stored rollout. The trajectory's own score and reward never change."""

    __tablename__ = "rejudged_rollout"
    __table_args__ = (Index("ix_rejudged_rollout_trajectory_id", "trajectory_id"),)

    evaluation_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"), primary_key=True
    )
    trajectory_id: Mapped[str] = mapped_column(Text, ForeignKey("trajectory.id", ondelete="CASCADE"), primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True)
    """Number of the repeat, from 0."""
    score: Mapped[float | None]
    score_explanation: Mapped[str]
    score_parts: Mapped[dict[str, Json]]
    reward: Mapped[float | None]
    reward_parts: Mapped[dict[str, Json]]
    success: Mapped[bool | None]
    advantage: Mapped[float | None]
