"""The columns that tables of claimed work share; app/claims/ reads and writes them."""

from datetime import date, datetime

from sqlalchemy import BigInteger, String, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, StartedRow
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.environment.json_type import Json


class DayUse(Base):
    """What a job has used on a day in UTC. It outlives the job: a budget must not come back with its deletion."""

    __tablename__ = "day_use"

    day: Mapped[date] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(String(26), primary_key=True, index=True)
    """The run or the evaluation."""
    project: Mapped[str]
    key_id: Mapped[str | None]
    usd: Mapped[float] = mapped_column(default=0.0, server_default="0")
    tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    minutes: Mapped[float] = mapped_column(default=0.0, server_default="0")
    reserved_usd: Mapped[float] = mapped_column(default=0.0, server_default="0")
    reserved_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class Claimable(StartedRow, Base):
    """A row that one worker at a time works on, under a lease."""

    __abstract__ = True

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """The project that it belongs to. Workers serve projects in turn."""
    status: Mapped[str] = mapped_column(Text, default=RunStatus.QUEUED)
    engine: Mapped[str | None]
    """The engine that has its models; only workers that can reach it work on the row. None if any worker can."""
    owner: Mapped[str | None]
    """The worker that holds the lease."""
    epoch: Mapped[int] = mapped_column(default=0, server_default="0")
    """The fencing token: each claim raises it, and every commit of a worker names the epoch that it claimed with."""
    lease_until: Mapped[datetime | None]
    """When the lease ends, by the database's clock, and other workers can claim the row."""
    claims: Mapped[int] = mapped_column(default=0, server_default="0")
    """Claims since progress was last saved. They are limited, so that work that kills its workers ends."""
    claimed_at: Mapped[datetime | None]
    """When it was last claimed."""
    cancel_requested: Mapped[bool] = mapped_column(default=False, server_default="false")
    wait_reason: Mapped[str | None]
    """Why it is paused, or what it is waiting for."""
    shortage: Mapped[dict[str, Json] | None]
    """The budget that paused it, or with `budget` that of its project or key which keeps it in the queue."""
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
