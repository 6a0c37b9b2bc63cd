"""Why runs do not learn."""

from sqlalchemy import Index, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, run_id
from learnloop_service.environment.json_type import Json


class SavedDiagnosis(Base):
    """One cause of a run's trouble (training/diagnosis), as far as its saved iterations show it."""

    __tablename__ = "diagnosis"
    __table_args__ = (Index("ix_diagnosis_active", "severity", "run_id", postgresql_where=text("state = 'active'")),)

    run_id: Mapped[str] = run_id()
    cause: Mapped[str] = mapped_column(Text, primary_key=True)
    state: Mapped[str]
    """active or cleared."""
    severity: Mapped[str]
    """note, warning or fault."""
    first_iteration: Mapped[int]
    named_at_iteration: Mapped[int]
    summary: Mapped[str]
    evidence: Mapped[dict[str, Json]]
    remedy: Mapped[dict[str, Json]]
    """`text`, `how` and `request`: the body of a fork, or null."""
    explained_by: Mapped[str | None]
