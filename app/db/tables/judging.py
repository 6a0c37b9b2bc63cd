"""What judges answered, and how often they may be asked."""

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

from app.db.tables.base import Base
from environment.json_type import Json


class JudgeCall(Base):
    """What one verdict of a judge model cost."""

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


class Verdict(Base):
    """A judge model's verdict, by the hash of everything that decided it."""

    __tablename__ = "verdict"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[dict[str, Json]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class JudgeRate(Base):
    """How far the requests to a judge model are ahead of its limits; all workers share it."""

    __tablename__ = "judge_rate"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    requests_at: Mapped[datetime]
    """When the next request may be sent, as far as the number of requests goes."""
    tokens_at: Mapped[datetime]
    """When the next request may be sent, as far as the number of tokens goes."""
