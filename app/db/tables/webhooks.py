"""Webhook endpoints, deliveries, and every attempt to deliver."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    String,
    Text,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.environment.json_type import Json

_DELIVERY_STATES = ", ".join(sorted(f"'{state}'" for state in DeliveryState))
_PENDING = f"state = '{DeliveryState.PENDING}'"
_FAILED = f"state = '{DeliveryState.FAILED}'"


class WebhookEndpoint(Base):
    """A receiver of events: those of one run, of a project's runs, or (the one from FRONTEND_URL) of all runs."""

    __tablename__ = "webhook_endpoint"
    __table_args__ = (
        Index("ix_webhook_endpoint_project", "project"),
        Index("ix_webhook_endpoint_run_id", "run_id"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str | None]
    """The project whose runs are covered; None for all projects."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """The run that is covered; None for all runs of the project."""
    url: Mapped[str]
    events: Mapped[list[Json]]
    """Event types to send; empty for all."""
    secret: Mapped[bytes | None]
    """Encrypted signing secret; None if deliveries are not signed."""
    previous_secret: Mapped[bytes | None]
    """Secret that signs as well until `previous_until`, so that a receiver has time to switch."""
    previous_until: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class WebhookAttempt(Base):
    """One attempt to send a delivery."""

    __tablename__ = "webhook_attempt"

    delivery_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    seconds: Mapped[float | None]
    status: Mapped[int | None]
    """The receiver's HTTP status; None if there was no reply."""
    error: Mapped[str | None]


class WebhookDelivery(Base):
    """One message to one receiver, written in the transaction that it reports."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        CheckConstraint(f"state IN ({_DELIVERY_STATES})", name="state"),
        CheckConstraint("num_nonnulls(run_id, evaluation_id, release_id) = 1", name="subject"),
        Index("ix_webhook_delivery_evaluation_id", "evaluation_id", postgresql_where=text("evaluation_id IS NOT NULL")),
        Index("ix_webhook_delivery_release_id", "release_id", postgresql_where=text("release_id IS NOT NULL")),
        Index(
            "ix_webhook_delivery_next",
            "project",
            "receiver",
            "next_attempt_at",
            postgresql_where=text(f"{_PENDING} AND is_next"),
        ),
        Index("ix_webhook_delivery_pending", "project", "receiver", postgresql_where=text(_PENDING)),
        Index("ix_webhook_delivery_failed", "project", postgresql_where=text(_FAILED)),
        Index("ix_webhook_delivery_run_id_state", "run_id", "state"),
        Index(
            "ix_webhook_delivery_turn",
            "run_id",
            "receiver",
            "event_seq",
            "seq",
            postgresql_where=text(_PENDING),
        ),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"))
    """The evaluation, if the event is an evaluation's."""
    release_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("release.id", ondelete="CASCADE"))
    """The release, if the event is a release's."""
    endpoint_id: Mapped[str | None] = mapped_column(
        String(26), ForeignKey("webhook_endpoint.id", ondelete="SET NULL"), index=True
    )
    project: Mapped[str]
    """Project of what the event belongs to. Projects take turns, and so do receivers within a project."""
    receiver: Mapped[str]
    """The endpoint's id, kept after the endpoint is deleted; the URL if there was no endpoint."""
    is_next: Mapped[bool] = mapped_column(default=False, server_default="false")
    """Whether it is the next delivery to send to the receiver for its subject (app/webhooks/turns.py)."""
    event_seq: Mapped[int | None] = mapped_column(BigInteger)
    event_type: Mapped[str | None]
    iteration: Mapped[int | None]
    url: Mapped[str]
    body: Mapped[str]
    """The exact JSON text that every attempt sends."""
    state: Mapped[str] = mapped_column(Text, default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    delivered_at: Mapped[datetime | None]

    @property
    def subject(self) -> str:
        """Return the id of the run, evaluation or release that the event belongs to."""
        return str(self.run_id or self.evaluation_id or self.release_id)
