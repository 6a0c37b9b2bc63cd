"""Sums of feedback in SQL: how much of it is for and against its subject."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Label, Subquery, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.db.tables import Feedback
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.judges.feedback import LOSSES, WINS

_BEATEN = "beaten"
"""Event type for the losing side of a preference."""
OUTCOME = "outcome"
"""Type of an outcome with a name of the sender's own. It is no opinion of an answer, and only releases count it."""
_About = InstrumentedAttribute[str | None]


def events_about(subject: _About, against: _About, *which: ColumnElement[bool]) -> Subquery:
    """Select what happened to emails and people's opinions, each preference a second time for its losing side. Columns:
    subject, type, confidence, source."""
    columns = (Feedback.confidence, Feedback.source)
    counts = (Feedback.type != OUTCOME, in_force(), *which)
    return union_all(
        select(subject.label("subject"), Feedback.type, *columns).where(subject.is_not(None), *counts),
        select(against, literal(_BEATEN), *columns).where(against.is_not(None), *counts),
    ).subquery()


def sums_of(events: Subquery) -> Sequence[Label[float] | Label[bool]]:
    """Return the columns wins, losses, and simulated (whether any event is)."""

    def weight(*types: str) -> ColumnElement[float]:
        # The sum of floats depends on their order, and rows are unordered.
        ordered = aggregate_order_by(events.c.confidence, events.c.confidence)
        return func.coalesce(func.sum(ordered).filter(events.c.type.in_(types)), 0.0)

    return (
        weight(*WINS).label("wins"),
        weight(*LOSSES, _BEATEN).label("losses"),
        func.bool_or(events.c.source == "simulator").label("simulated"),
    )
