"""Improvements: requests to make an agent better by the cheapest step that is good enough."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, StartedRow
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.environment.json_type import Json


def _one_of(column: str, values: type[ImprovementStatus] | type[Rung] | type[CandidateState]) -> CheckConstraint:
    listed = ", ".join(sorted(f"'{value}'" for value in values))
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class Improvement(StartedRow, Base):
    """An improvement. All that takes time is an evaluation or a run; one at a time is its job."""

    __tablename__ = "improvement"
    __table_args__ = (
        _one_of("status", ImprovementStatus),
        CheckConstraint("job_kind IN ('evaluation', 'run')", name="job_kind"),
        Index("ix_improvement_project_id", "project", "id"),
        Index("ix_improvement_status", "status"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    status: Mapped[str] = mapped_column(Text)
    request: Mapped[dict[str, Json]]
    """The accepted request, with numbers of tasks filled in."""
    facts: Mapped[dict[str, Json]]
    """What the service found out when it was accepted; see app/improvements/start.py."""
    actor: Mapped[str]
    """Who asked for it."""
    version: Mapped[int] = mapped_column(default=0, server_default="0")
    """Raised by each change, so that of two processes with the same next move only one makes it."""
    champion: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of the best candidate so far."""
    job_kind: Mapped[str | None] = mapped_column(Text)
    job_id: Mapped[str | None] = mapped_column(String(26))
    """The evaluation or run in progress; None between two of them."""
    job_for: Mapped[str | None]
    """What the job is for: the number of a candidate, `pilot` or `final`."""
    pilot: Mapped[dict[str, Json] | None]
    """Id of the pilot's evaluation, and what it showed."""
    final: Mapped[dict[str, Json] | None]
    """Ids of the evaluations of the test tasks, newest last."""
    reason: Mapped[str | None]
    """Why it ended, or what it needs."""
    waits_until: Mapped[datetime | None]
    """Until when it waits for proposals of prompts; None until it has begun to wait."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class Candidate(Base):
    """Something that an improvement tried, or will try. The rows are also the improvement's log."""

    __tablename__ = "candidate"
    __table_args__ = (
        _one_of("rung", Rung),
        _one_of("state", CandidateState),
        Index("ix_candidate_run_id", "run_id"),
    )

    improvement_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("improvement.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    """0 is the agent as it is."""
    rung: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(Text)
    author: Mapped[str]
    """Who proposed it."""
    why: Mapped[str] = mapped_column(Text, default="", server_default="")
    """The proposer's reason."""
    reason: Mapped[str | None]
    """Why it was refused, skipped or failed."""
    prompt: Mapped[dict[str, Json] | None]
    """Reference to its prompt; None for the environment's texts."""
    model: Mapped[str]
    """Name of the model: a base model, PROJECT/NAME@STEP or a listed model."""
    listed: Mapped[bool] = mapped_column(default=False, server_default="false")
    """Whether the model is on the operator's list, so that it cannot be trained."""
    only_by_person: Mapped[bool] = mapped_column(default=False, server_default="false")
    """Whether its prompt quotes training rollouts, so that only a person can promote it."""
    run_id: Mapped[str | None] = mapped_column(String(26))
    iteration: Mapped[int | None]
    """The iteration of the run whose checkpoint was accepted, or was the best."""
    screening_id: Mapped[str | None] = mapped_column(String(26))
    """The evaluation of training tasks."""
    gate_id: Mapped[str | None] = mapped_column(String(26))
    """The evaluation of validation tasks."""
    error_share: Mapped[float | None]
    """Its share of the 5%: bound on the probability of accepting it if it is not better."""
    evidence: Mapped[dict[str, Json] | None]
    """What was compared: `won`, `lost`, `tasks`; with `training` the same of the screening."""
    figures: Mapped[dict[str, Json] | None]
    """Its success on validation tasks with interval, and what an answer takes: `tokens`, `seconds`, `usd`."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    decided_at: Mapped[datetime | None]
