"""The headline figures of runs in SQL, for lists that are sorted by them.

app/statistics/verdict.py computes the same from the rows of one run.
"""

from sqlalchemy import ColumnElement, Float, Select, and_, case, cast, func, or_, select, true, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.db.tables import Evaluation, Run
from learnloop_service.app.statistics.verdict import HEADLINES, VerdictState
from learnloop_service.training.statistics.difference import MIN_CHANGED

_KIND = case(
    *((and_(Evaluation.split == split, Evaluation.mode == mode), rank) for rank, (split, mode) in enumerate(HEADLINES)),
    else_=None,
)
"""Rank of an evaluation's kind; null for kinds that are no headline."""
_POSITION = (Evaluation.iteration, Evaluation.step)


def _end(
    *order: ColumnElement[int] | InstrumentedAttribute[int],
) -> Select[int, int, float, dict[str, object] | None, int]:
    return (
        select(*_POSITION, Evaluation.success, Evaluation.difference, Evaluation.scenarios)
        .where(Evaluation.run_id == Run.id, _KIND.is_not(None))
        .order_by(_KIND, *order)
        .limit(1)
        .correlate(Run)
    )


_FIRST = _end(*_POSITION).lateral("first_evaluation")
_LATEST = _end(*(column.desc() for column in _POSITION)).lateral("latest_evaluation")
_IS_LATER = tuple_(_LATEST.c.iteration, _LATEST.c.step) > tuple_(_FIRST.c.iteration, _FIRST.c.step)


def _of_difference(name: str) -> ColumnElement[float]:
    return cast(_LATEST.c.difference[name].astext, Float)


FIRST: ColumnElement[float] = _FIRST.c.success
"""Success of the baseline, from 0 to 1; null before it."""
LATEST: ColumnElement[float] = case(
    (
        _FIRST.c.scenarios < _LATEST.c.scenarios,
        FIRST + func.coalesce(_of_difference("mean"), _LATEST.c.success - FIRST),
    ),
    else_=_LATEST.c.success,
)
"""Success of the latest evaluation, which may be the baseline's, on the scenarios of the baseline."""
GAIN: ColumnElement[float] = case((_IS_LATER, 100 * func.coalesce(_of_difference("mean"), LATEST - FIRST)))
"""The latest success minus the first one, in percentage points; null before there are two."""
STATE: ColumnElement[str] = case(
    (func.coalesce(_IS_LATER, False).is_(False), VerdictState.TOO_EARLY),
    (
        and_(_of_difference("changed") >= MIN_CHANGED, or_(_of_difference("low") > 0, _of_difference("high") < 0)),
        case((_of_difference("mean") > 0, VerdictState.LEARNED), else_=VerdictState.GOT_WORSE),
    ),
    else_=VerdictState.NO_CHANGE_SHOWN,
)


def with_headlines(query: Select) -> Select:  # type: ignore[type-arg]  # any columns
    """Return a query of runs that can also use these figures."""
    return query.select_from(Run).outerjoin(_FIRST, true()).outerjoin(_LATEST, true())
