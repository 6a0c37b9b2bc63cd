"""API keys, browsers that signed in with one, and answers kept for repeated requests."""

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base
from environment.json_type import Json


class ApiKey(Base):
    """A key to one project. The key itself is nowhere: only its hash."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    """The key's first characters, to tell it by."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Json]]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SignIn(Base):
    """A browser that was signed in with a key. Its token is nowhere: only the hash."""

    __tablename__ = "browser_session"

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    key_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("api_key.id", ondelete="CASCADE"), index=True)
    """None: the key from the settings."""
    expires_at: Mapped[datetime] = mapped_column(index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class IdempotencyKey(Base):
    """The reply to a request that created something, for its repetition. Kept 24 hours."""

    __tablename__ = "idempotency_key"

    project: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    """Of method, path and body."""
    status: Mapped[int | None]
    """Of the reply; None while the first request is under way."""
    body: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lease_until: Mapped[datetime | None]
    """Until then nobody else handles the request, which renews it. None: a minute from `created_at`."""
