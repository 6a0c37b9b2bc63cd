"""Uploaded and prepared data to train on and to evaluate with."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.environment.json_type import Json


class Document(Base):
    """A graph, a prompt, a set of scenarios or demonstrations from a request, by the SHA-256 of its canonical JSON."""

    __tablename__ = "document"

    project: Mapped[str] = mapped_column(Text, primary_key=True, server_default="*")
    """The project that owns it, or `*` if all projects can use it."""
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str]
    """graph, scenarios, demonstrations, prompt, or served: rows of served answers."""
    content: Mapped[Json] = mapped_column(JSONB)
    """A list, or the object of a prompt."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DatasetVersion(Base):
    """A version of a named inbox, prompt, set of scenarios or demonstrations, and its origin. Rows never change."""

    __tablename__ = "dataset_version"
    __table_args__ = (
        UniqueConstraint("project", "kind", "name", "version"),
        Index("ix_dataset_version_sha256", "sha256"),
        CheckConstraint("kind IN ('inbox', 'scenarios', 'demonstrations', 'prompt')", name="kind"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """The project that owns it, or `*` if all projects can use it."""
    kind: Mapped[str]
    name: Mapped[str]
    version: Mapped[int]
    """Number of the version, from 1."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the content: an inbox's emails, or the document of that kind."""
    size: Mapped[int]
    """Number of emails, scenarios, demonstrations, or parts of a prompt."""
    environment: Mapped[str]
    """The environment that it is for; empty for demonstrations and prompts, which suit any."""
    inbox_sha256: Mapped[str | None] = mapped_column(String(64))
    """The inbox that scenarios are about; None for other kinds."""
    origin: Mapped[dict[str, Json]]
    """Where it came from: `source` is `api` or `prepared`, followed by settings, hashes of sources, counts."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class InboxPart(Base):
    """A compressed piece of an uploaded inbox's file. Every service and worker builds its own copy from the pieces."""

    __tablename__ = "inbox_part"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes]
