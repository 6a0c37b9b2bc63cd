"""Sums of opinions in SQL: what speaks for and against whatever the feedback is about."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Label, Subquery, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import InstrumentedAttribute

from app.db.tables import Feedback
from judges.feedback import LOSSES, WINS

_BEATEN = "beaten"
"""The other side of a preference."""
_About = InstrumentedAttribute[str | None]


def events_about(subject: _About, against: _About, *which: ColumnElement[bool]) -> Subquery:
    """Each event, and each preference once more for its other side. Columns: subject, type, confidence, source."""
    columns = (Feedback.confidence, Feedback.source)
    return union_all(
        select(subject.label("subject"), Feedback.type, *columns).where(subject.is_not(None), *which),
        select(against, literal(_BEATEN), *columns).where(against.is_not(None), *which),
    ).subquery()


def sums_of(events: Subquery) -> Sequence[Label[float] | Label[bool]]:
    """wins, losses, and whether any event is simulated."""

    def weight(*types: str) -> ColumnElement[float]:
        # A sum of floats depends on their order, and rows have none.
        ordered = aggregate_order_by(events.c.confidence, events.c.confidence)
        return func.coalesce(func.sum(ordered).filter(events.c.type.in_(types)), 0.0)

    return (
        weight(*WINS).label("wins"),
        weight(*LOSSES, _BEATEN).label("losses"),
        func.bool_or(events.c.source == "simulator").label("simulated"),
    )
