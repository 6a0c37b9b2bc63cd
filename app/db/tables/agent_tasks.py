"""Tasks that wait to be claimed by a team's own agent."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, func
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.environment.json_type import Json


class OpenAgentTask(Base):
    """A rollout that an external agent makes. The row is deleted when its session has ended."""

    __tablename__ = "agent_task"
    __table_args__ = (Index("ix_agent_task_project_run_id", "project", "run_id"),)

    session_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), primary_key=True
    )
    project: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(String(26))
    """The run or evaluation that is waiting for it."""
    task: Mapped[dict[str, Json]]
    """What the agent receives in addition to its session."""
    timeout_s: Mapped[float]
    """Time limit of each claim, counted from the claim."""
    losses: Mapped[int] = mapped_column(default=0)
    """Number of claims in a row that were lost or given up without a model reply in between."""
    worker: Mapped[str | None]
    """The latest claimant."""
    lease_until: Mapped[datetime | None]
    """When the lease of its worker ends, and others can claim it; None if no worker has it."""
    deadline: Mapped[datetime | None]
    """When the latest claim times out."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
