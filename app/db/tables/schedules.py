"""Schedules: runs that start at fixed times, from what users asked."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, String, Text, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, StartedRow
from learnloop_service.app.domain.schedule_state import DueState, Then
from learnloop_service.environment.json_type import Json

_THEN = ", ".join(sorted(f"'{action}'" for action in Then))
_STATES = ", ".join(sorted(f"'{state}'" for state in DueState))


class Schedule(StartedRow, Base):
    """A learn-loop that is started again and again, each time from the promoted checkpoint."""

    __tablename__ = "schedule"
    __table_args__ = (
        UniqueConstraint("project", "name"),
        CheckConstraint(f'"then" IN ({_THEN})', name="then"),
        Index("ix_schedule_next_due_at", "next_due_at"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    cron: Mapped[str]
    """Five fields, in UTC."""
    run: Mapped[dict[str, Json]]
    """The learn-loop as it was given, with `source.sessions`."""
    promoted_name: Mapped[str]
    """The name within the project whose checkpoint each run starts from."""
    then: Mapped[str] = mapped_column(Text)
    least_new_tasks: Mapped[int]
    window_days: Mapped[float | None]
    """Tasks are drawn from this many days before the due time; None: from the time since the last draw."""
    actor: Mapped[str]
    """Who created it."""
    next_due_at: Mapped[datetime | None]
    """The next time to start a run; None while paused."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ScheduleRun(Base):
    """A due time of a schedule that was noticed, and what came of it. There is at most one run for each."""

    __tablename__ = "schedule_run"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index("ix_schedule_run_run_id", "run_id"),
        Index("ix_schedule_run_evaluation_id", "evaluation_id"),
        Index("ix_schedule_run_release_id", "release_id"),
    )

    schedule_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("schedule.id", ondelete="CASCADE"), primary_key=True
    )
    due_at: Mapped[datetime] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(Text)
    reason: Mapped[str | None]
    """Why it was skipped, or why nothing followed its run: a `DueReason`."""
    detail: Mapped[str | None]
    """The reason as a sentence."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="SET NULL"))
    started_from: Mapped[str | None]
    """The champion that the run started from, as PROJECT/NAME@STEP; None for its base model."""
    tasks: Mapped[int | None]
    """Number of tasks that were drawn; None if it was skipped."""
    users: Mapped[int | None]
    """Number of users whose tasks they are."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="SET NULL"))
    """The trial of the run's best checkpoint."""
    trial_alpha: Mapped[float | None]
    """Probability that the trial promotes a checkpoint that is not better; None without a trial."""
    release_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("release.id", ondelete="SET NULL"))
    """The release of the run's best checkpoint."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class UserScenario(Base):
    """A scenario of a stored set that was made from a user's request, so that it can be found and deleted."""

    __tablename__ = "user_scenario"
    __table_args__ = (
        ForeignKeyConstraint(["project", "sha256"], ["document.project", "document.sha256"], ondelete="CASCADE"),
        Index("ix_user_scenario_user_hash", "user_hash"),
    )

    project: Mapped[str] = mapped_column(Text, primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """The set, a `document`."""
    scenario_id: Mapped[str] = mapped_column(Text, primary_key=True)
    user_hash: Mapped[str] = mapped_column(String(64))
