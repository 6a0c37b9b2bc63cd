"""What was trained, and which of it has a name."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Identity,
    Index,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, run_id
from environment.json_type import Json


class Checkpoint(Base):
    """A step of a run's model that the backend keeps."""

    __tablename__ = "checkpoint"

    run_id: Mapped[str] = run_id()
    step: Mapped[int] = mapped_column(primary_key=True)
    iteration: Mapped[int]
    model: Mapped[str | None]
    """What the backend calls it; None for those that were saved before this was kept."""
    success: Mapped[float | None]
    """Sampled validation success, where it was evaluated."""
    is_best: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Promotion(Base):
    """A checkpoint under a name that its users know. The newest row of a name counts, unless it was withdrawn; older
    ones are its history."""

    __tablename__ = "promotion"
    __table_args__ = (Index("ix_promotion_project_name_id", "project", "name", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    """What it is promoted as."""
    backend: Mapped[str]
    model_name: Mapped[str]
    """Of a model of the same project."""
    step: Mapped[int]
    actor: Mapped[str]
    evidence: Mapped[dict[str, Json] | None]
    """Of a trial that it won: the evaluation, and what its pairs said; None: promoted without one."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    withdrawn_at: Mapped[datetime | None]
    """When the name was taken away from it; None: it has the name, or another one took it over."""
    withdrawn_by: Mapped[str | None]
