"""Tasks that wait for a team's own agent to claim them."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, func
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base
from environment.json_type import Json


class AgentTask(Base):
    """A rollout that somebody elsewhere is to make. It goes when its session has ended."""

    __tablename__ = "agent_task"
    __table_args__ = (Index("ix_agent_task_project_run_id", "project", "run_id"),)

    session_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), primary_key=True
    )
    project: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(String(26))
    """The run or evaluation that waits for it."""
    task: Mapped[dict[str, Json]]
    """What the agent is given, besides its session."""
    timeout_s: Mapped[float]
    """For each claim, from the moment when it is made."""
    claims: Mapped[int] = mapped_column(default=0)
    """The fencing token: each claim has a number of its own."""
    losses: Mapped[int] = mapped_column(default=0)
    """How often whoever claimed it fell silent, or could not do it."""
    worker: Mapped[str | None]
    """Who claimed it last."""
    lease_until: Mapped[datetime | None]
    """Until then nobody else may claim it; None: nobody works on it."""
    deadline: Mapped[datetime | None]
    """Of the newest claim."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
