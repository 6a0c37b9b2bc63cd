"""Checkpoints and their promotions."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Identity,
    Index,
    ScalarSelect,
    func,
    select,
)
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, PromptedRow, run_id
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.environment.json_type import Json


class Checkpoint(Base):
    """A step of a run's model that the backend keeps."""

    __tablename__ = "checkpoint"

    run_id: Mapped[str] = run_id()
    step: Mapped[int] = mapped_column(primary_key=True)
    iteration: Mapped[int]
    model: Mapped[str | None]
    """The backend's name for it; None if it was saved before names were stored."""
    success: Mapped[float | None]
    """Sampled validation success, if the step was evaluated."""
    is_best: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Promotion(PromptedRow, Base):
    """A checkpoint, with the prompt that it is served with, under a name that requests can use.

    The newest row of a name counts, unless it was withdrawn; older rows are the name's history.
    """

    __tablename__ = "promotion"
    __table_args__ = (Index("ix_promotion_project_name_id", "project", "name", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    """The name that it is promoted to."""
    backend: Mapped[str]
    model_name: Mapped[str]
    """The trained model, of the same project."""
    step: Mapped[int]
    actor: Mapped[str]
    evidence: Mapped[dict[str, Json] | None]
    """The trial that it won: the evaluation and the result of its pairs. None if it was promoted without one."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    withdrawn_at: Mapped[datetime | None]
    """When the promotion was withdrawn; None if it is in force or a later one replaced it."""
    withdrawn_by: Mapped[str | None]
    prompt_missed_at: Mapped[datetime | None]
    """When a request to the name last came without its prompt, to the minute; None if none did."""
    explore: Mapped[dict[str, Json] | None]
    """Which share of consented sessions explores, the salt of their coin, who set it and when: `share`, `salt`,
    `actor`, `since`. None if it was never set. The next promotion of the name keeps it."""

    @classmethod
    def explore_of(cls, project: str, name: str) -> ScalarSelect[dict[str, Json] | None]:
        """Select the `explore` that the name has now, for its next promotion."""
        newest = select(cls.explore).where(cls.project == project, cls.name == name).order_by(cls.id.desc()).limit(1)
        return newest.scalar_subquery()

    def has(self, model_name: str, step: int, prompt: PromptReference | None) -> bool:
        """Return whether it is this checkpoint with this prompt."""
        sha256 = None if prompt is None else prompt.sha256
        return (self.model_name, self.step, self.prompt_sha256) == (model_name, step, sha256)
