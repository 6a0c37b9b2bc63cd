"""Which feedback counts. Rows never change: an event is taken back by another one, which can arrive before it."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, and_, exists, or_
from sqlalchemy.orm import aliased

from learnloop_service.app.db.tables import Feedback

_CONTENT = ("type", "occurred_at", "source")
_OPTIONAL_CONTENT = ("against_id", "against_session_id", "outcome_name", "value", "confidence", "comment")


def in_force(until: SQLColumnExpression[datetime] | None = None) -> ColumnElement[bool]:
    """Return the SQL condition for rows of `Feedback` that are neither withdrawn nor a withdrawal.

    Whoever withdraws an event also withdraws its repetitions under other ids: what has the same subject and content,
    including the time at which it happened. With `until`, only what was received by then can withdraw it.
    """
    withdrawal, withdrawn = aliased(Feedback), aliased(Feedback)
    in_time = () if until is None else (withdrawal.received_at <= until, withdrawn.received_at <= until)
    return and_(
        Feedback.withdraws.is_(None),
        ~exists()
        .where(
            withdrawal.withdraws.is_not(None),
            withdrawal.withdraws == withdrawn.event_id,
            withdrawal.project == withdrawn.project,
            withdrawal.source == withdrawn.source,
            same_subject(withdrawal, withdrawn),
            withdrawn.project == Feedback.project,
            same_subject(withdrawn, Feedback),
            *(getattr(withdrawn, name) == getattr(Feedback, name) for name in _CONTENT),
            *(getattr(withdrawn, name).is_not_distinct_from(getattr(Feedback, name)) for name in _OPTIONAL_CONTENT),
            *in_time,
        )
        .correlate_except(withdrawal, withdrawn),
    )


def same_subject(one: Any, other: Any) -> ColumnElement[bool]:
    """Return the SQL condition for two rows to be about the same trajectory, session or user. Each has one subject."""
    return or_(
        one.trajectory_id == other.trajectory_id,
        one.session_id == other.session_id,
        and_(one.user_hash == other.user_hash, one.asked_as == other.asked_as),
    )
