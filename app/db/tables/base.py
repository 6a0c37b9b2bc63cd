"""What all tables share: naming of constraints, and column types."""

from datetime import datetime

from sqlalchemy import (
    DateTime,
    ForeignKey,
    MetaData,
    String,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from learnloop_service.app.db.json_text import StorableText
from learnloop_service.environment.json_type import Json


class Base(DeclarativeBase):
    """Base class of all tables; Alembic compares the database with its metadata."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy from the class
        datetime: DateTime(timezone=True),
        dict[str, Json]: JSONB,
        list[Json]: JSONB,
        str: StorableText,
    }


class EventRow(Base):
    """What happened to a run, an evaluation or a release: append-only, numbered by `seq` from 1 without gaps."""

    __abstract__ = True

    type: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    """Version of the type's `data`."""
    actor: Mapped[str]
    """Who did it: `worker:...`, `key:PREFIX`, or `local` if no keys are required."""
    data: Mapped[dict[str, Json]]
    occurred_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


def run_id() -> Mapped[str]:
    """Return a column that references a row's run as (part of) its primary key. Rows are deleted with their run."""
    return mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
