"""What all tables share: naming of constraints, and column types."""

from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    DateTime,
    ForeignKey,
    MetaData,
    String,
    func,
    or_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from learnloop_service.app.db.json_text import StorableText
from learnloop_service.app.domain.stored_request import PromptReference
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


class PromptedRow:
    """Columns of a row with a stored prompt, or with none."""

    prompt_sha256: Mapped[str | None] = mapped_column(String(64))
    prompt_name: Mapped[str | None]
    """The name that the prompt was referred to by, if any."""
    prompt_version: Mapped[int | None]

    @property
    def prompt(self) -> PromptReference | None:
        """The prompt; None for the environment's texts."""
        if self.prompt_sha256 is None:
            return None
        return PromptReference(sha256=self.prompt_sha256, name=self.prompt_name, version=self.prompt_version)

    @prompt.setter
    def prompt(self, prompt: PromptReference | None) -> None:
        for name, value in prompt_columns(prompt).items():
            setattr(self, name, value)


class StartedRow:
    """Column of a row that someone started: `id` and `name` of the API key, and as `order` the improvement or schedule
    that carried out its wish, if any. None without a key, or if an earlier version saved the row."""

    started_by: Mapped[dict[str, Json] | None]

    @classmethod
    def is_started_by(cls, whom: str) -> ColumnElement[bool]:
        """Return the condition for rows of that key, by id or name, or of that order."""
        return or_(*(cls.started_by[name].astext == whom for name in ("id", "name", "order")))


def prompt_columns(prompt: PromptReference | None) -> dict[str, Json]:
    """Return the values of the columns of a `PromptedRow`."""
    fields = ("sha256", "name", "version")
    return {f"prompt_{field}": None if prompt is None else getattr(prompt, field) for field in fields}


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
