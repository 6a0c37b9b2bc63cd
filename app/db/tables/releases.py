"""Releases: a candidate checkpoint that earns the traffic of a promoted name."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    func,
    or_,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, EventRow, PromptedRow, StartedRow
from learnloop_service.app.domain.release_rules import Guardrail
from learnloop_service.app.domain.release_state import LIVE, Arm, ReleaseState
from learnloop_service.environment.json_type import Json


def _one_of(values: Iterable[str]) -> str:
    return ", ".join(sorted(f"'{value}'" for value in values))


_LIVE_STATES = _one_of(LIVE)
_THUMBS_DOWN = str(Guardrail.THUMBS_DOWN_1H)
_ARMS = f"arm IN ({_one_of(Arm)})"


def _release_id() -> Mapped[str]:
    return mapped_column(String(26), ForeignKey("release.id", ondelete="CASCADE"), primary_key=True)


class Release(PromptedRow, StartedRow, Base):
    """A candidate for a promoted name, a checkpoint with its prompt, and the share of the name's users that meet it."""

    __tablename__ = "release"
    __table_args__ = (
        CheckConstraint(f"state IN ({_one_of(ReleaseState)})", name="state"),
        Index(
            "uq_release_project_name_live",
            "project",
            "name",
            unique=True,
            postgresql_where=text(f"state IN ({_LIVE_STATES})"),
        ),
        Index("ix_release_project_id", "project", "id"),
        Index("ix_release_evaluation_id", "evaluation_id"),
        Index("ix_release_promotion_id", "promotion_id"),
        Index("ix_release_confirming_id", "confirming_id", postgresql_where=text("confirming_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    """The promoted name within its project."""
    state: Mapped[str] = mapped_column(Text)
    version: Mapped[int] = mapped_column(default=1)
    """Raised by each change of state, stage or share. A decision names the version that it was made on."""
    salt: Mapped[bytes] = mapped_column(LargeBinary)
    """128 random bits that decide who is enrolled and in which arm. Secret until the release has ended."""
    unit: Mapped[str]
    """What is assigned: `user` or `session`."""
    promotion_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("promotion.id"))
    """The stable arm: the name's promotion when the release began."""
    confirming_id: Mapped[int | None] = mapped_column(BigInteger, ForeignKey("promotion.id"))
    """The candidate's promotion by outcomes, while units whose windows were open then keep their arms to confirm it."""
    backend: Mapped[str]
    """The candidate's backend."""
    model_name: Mapped[str]
    """The candidate's model, of the same project."""
    step: Mapped[int]
    """The candidate's checkpoint."""
    stage: Mapped[int] = mapped_column(default=0)
    """Index into the ramp."""
    share: Mapped[float]
    """Probability, in (0, 0.5], that a user meets the candidate."""
    rules: Mapped[dict[str, Json]]
    """Ramp, guardrails, window, outcome and time limit as accepted, with all defaults filled in."""
    baseline: Mapped[dict[str, Json]]
    """What the stable checkpoint did when the release began: `p95_s`, `tokens`, and the users of 14 days."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="SET NULL"))
    """The trial on held-out scenarios; None if it was skipped."""
    evidence: Mapped[dict[str, Json] | None]
    """What the latest look found that had something new to count; None before."""
    looks: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of these looks."""
    reason: Mapped[str | None]
    """Why it is held or ended, a `ReleaseReason`; None while it runs and if it was promoted."""
    actor: Mapped[str]
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Number of its latest event."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    """When users could first meet the candidate."""
    stage_since: Mapped[datetime | None]
    looked_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    @classmethod
    def needs_arms(cls) -> ColumnElement[bool]:
        """Return the condition for releases that are live or being confirmed, so that users meet both arms."""
        return or_(cls.state.in_(sorted(LIVE)), cls.confirming_id.is_not(None))


class ReleaseUnit(Base):
    """A user, or a session, that was enrolled in a release, from its first answer on. Its arm never changes."""

    __tablename__ = "release_unit"
    __table_args__ = (
        CheckConstraint(_ARMS, name="arm"),
        Index("ix_release_unit_open", "release_id", "exposed_at", postgresql_where=text("closed_at IS NULL")),
        Index("ix_release_unit_new", "release_id", postgresql_where=text("look IS NULL")),
    )

    release_id: Mapped[str] = _release_id()
    unit: Mapped[str] = mapped_column(String(64), primary_key=True)
    """HMAC-SHA-256 of the user's key under the service's secret, or the session's id."""
    arm: Mapped[str]
    probability: Mapped[float]
    """Probability of that arm for an enrolled unit."""
    forecast: Mapped[float | None]
    """The outcome, in [0, 1], that was expected when the unit was exposed; None while its window is open, or if too few
    outcomes were known by then."""
    stage: Mapped[int]
    exposed_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    closed_at: Mapped[datetime | None]
    """When its window closed and its outcome was frozen; None while it is open."""
    outcome: Mapped[float | None]
    """In [0, 1]; None while the window is open."""
    reported: Mapped[bool | None]
    """Whether anything was reported about it within its window; None while that is open."""
    look: Mapped[int | None]
    """Number of the look that counted its outcome; None until it is counted, and for units that confirm a promotion."""
    second_outcome: Mapped[float | None]
    """Its outcome in a second window after the first, of units that confirm a promotion."""


class ReleaseObservation(Base):
    """What a unit's first answer in a stage was like. All users count, also those who were not enrolled."""

    __tablename__ = "release_observation"
    __table_args__ = (
        CheckConstraint(_ARMS, name="arm"),
        Index("ix_release_observation_observed_at", "release_id", "observed_at"),
        Index("ix_release_observation_new", "release_id", postgresql_where=text("look IS NULL")),
        Index(
            "ix_release_observation_new_late",
            "release_id",
            postgresql_where=text(f"late_look IS NULL AND values ? '{_THUMBS_DOWN}'"),
        ),
        Index(
            "ix_release_observation_first_hour",
            "release_id",
            "observed_at",
            postgresql_where=text(f"NOT values ? '{_THUMBS_DOWN}'"),
        ),
    )

    release_id: Mapped[str] = _release_id()
    stage: Mapped[int] = mapped_column(primary_key=True)
    unit: Mapped[str] = mapped_column(String(64), primary_key=True)
    arm: Mapped[str]
    probability: Mapped[float]
    """Probability that this unit met the candidate in this stage."""
    values: Mapped[dict[str, Json]]
    """A value in [0, 1] for each guardrail that could be measured on this answer."""
    look: Mapped[int | None]
    """Number of the look that counted the values that were known with the answer; None until it is counted."""
    late_look: Mapped[int | None]
    """Number of the look that counted the opinions of the first hour."""
    observed_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class ReleaseEvent(EventRow):
    """What happened to a release: append-only, numbered from 1 without gaps."""

    __tablename__ = "release_event"

    release_id: Mapped[str] = _release_id()
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
