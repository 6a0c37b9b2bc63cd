"""What was uploaded or prepared to learn from."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base
from environment.json_type import Json


class Document(Base):
    """A graph, a set of scenarios or demonstrations that a request brought, by the SHA-256 of its canonical JSON."""

    __tablename__ = "document"

    project: Mapped[str] = mapped_column(Text, primary_key=True, server_default="*")
    """Whose it is; `*`: all projects may use it."""
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str]
    """graph, scenarios or demonstrations."""
    content: Mapped[list[Json]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DatasetVersion(Base):
    """A version of a named inbox, set of scenarios or set of demonstrations, and what it was made from. Rows never
    change."""

    __tablename__ = "dataset_version"
    __table_args__ = (
        UniqueConstraint("project", "kind", "name", "version"),
        Index("ix_dataset_version_sha256", "sha256"),
        CheckConstraint("kind IN ('inbox', 'scenarios', 'demonstrations')", name="kind"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """Whose it is; `*`: all projects may use it."""
    kind: Mapped[str]
    name: Mapped[str]
    version: Mapped[int]
    """From 1."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Of the content: of an inbox's emails, or the document's of that kind."""
    size: Mapped[int]
    """Emails, scenarios or demonstrations."""
    environment: Mapped[str]
    """What it is for; demonstrations are for any, which is the empty name."""
    inbox_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of scenarios: the inbox that they are about."""
    origin: Mapped[dict[str, Json]]
    """Where it comes from: `source` is `api` or `prepared`; then settings, hashes of sources, counts."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class InboxPart(Base):
    """A piece of an uploaded inbox's file, compressed, from which every service and worker makes its own copy."""

    __tablename__ = "inbox_part"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes]
