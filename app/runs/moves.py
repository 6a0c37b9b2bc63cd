"""The only place that changes a run's status."""

from typing import Any

from sqlalchemy import ColumnElement, Update, update

from app.db.tables import Run
from app.domain.run_state import Move


def moving(move: Move, *where: ColumnElement[bool], **values: Any) -> Update:
    """Makes the move, and sets `values`, for runs that match `where` and are in a state that the move starts from.

    Callers add `returning` to learn whether it was made.
    """
    return update(Run).where(Run.status.in_(move.sources), *where).values(status=move.target, **values)
