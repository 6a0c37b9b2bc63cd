"""API keys, browser sign-ins, and stored replies for idempotent requests."""

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.environment.json_type import Json


class ApiKey(Base):
    """An API key of a project, or of all projects (`*`). Only its hash is stored."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    """The first characters of the key, to identify it."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Json]]
    improvement_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("improvement.id", ondelete="SET NULL"))
    """The improvement that the key proposes prompts for. None for other keys, and once it is deleted. Then the key
    opens nothing."""
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SignIn(Base):
    """A browser's sign-in with an API key. Only the hash of its token is stored."""

    __tablename__ = "browser_session"

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    key_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("api_key.id", ondelete="CASCADE"), index=True)
    """The API key; None for the key from the settings."""
    expires_at: Mapped[datetime] = mapped_column(index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class IdempotencyKey(Base):
    """The reply to a request that created something, to be sent again if the request is repeated. Kept for 24 hours."""

    __tablename__ = "idempotency_key"

    project: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    """Hash of method, path, query and body."""
    status: Mapped[int | None]
    """HTTP status of the reply; None while the first request is in progress."""
    body: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lease_until: Mapped[datetime | None]
    """End of the lease of the process that handles the request, which renews it. None in rows of earlier versions,
    whose lease ends a minute after `created_at`."""
