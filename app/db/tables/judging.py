"""Judges' verdicts and their cost, and rate limits of judge models."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Identity,
    Index,
    String,
    Text,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.environment.json_type import Json


class JudgeCall(Base):
    """The cost of one verdict of a judge model."""

    __tablename__ = "judge_call"
    __table_args__ = (Index("ix_judge_call_run_id_iteration", "run_id", "iteration"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    iteration: Mapped[int]
    judge: Mapped[str]
    model: Mapped[str]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cost_usd: Mapped[float | None]
    requests: Mapped[int]
    seconds: Mapped[float]
    cached: Mapped[bool]
    error: Mapped[str | None]


class JudgeVerdict(Base):
    """A judge model's verdict, keyed by the hash of all its inputs."""

    __tablename__ = "verdict"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[dict[str, Json]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class JudgeRate(Base):
    """How far the requests to a judge model are ahead of its rate limits. All workers share it."""

    __tablename__ = "judge_rate"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    requests_at: Mapped[datetime]
    """When the limit on requests allows the next one."""
    tokens_at: Mapped[datetime]
    """When the limit on tokens allows the next request."""
