"""Closes the windows of a release's units: each one's outcome is frozen when its window is over, by the database's
clock."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sqlalchemy import (
    ColumnElement,
    Double,
    and_,
    case,
    cast,
    exists,
    func,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import Feedback, Release, ReleaseObservation, ReleaseUnit
from learnloop_service.app.domain.release_rules import Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.feedback.outcomes import feedback_on_units, outcome_of, received_on_units, unit_events
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.app.releases.expected import expected_outcomes

_BATCH = 1_000
"""Number of units or observations in one statement."""
_SETTLED = timedelta(seconds=30)
"""How long after its end a window is closed: an event that was received in time can still be about to be committed. A
transaction that is idle for longer is ended by the database."""
_FIRST_HOUR = timedelta(hours=1)
_LATE_KEY: ColumnElement[str] = literal_column(f"'{Guardrail.THUMBS_DOWN_1H}'")
"""In the form of the partial index, which Postgres recognizes only literally."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """The arm of a unit whose window was closed, and whether anything was reported about it in time."""

    arm: Arm
    reported: Literal["yes", "no"]


async def close_windows(tx: AsyncSession, release: Release) -> Counter[ClosedWindow]:
    """Freeze the outcomes of the units whose window is over, and return what they were like. Of users who confirm a
    promotion also freeze those of a second window. Note for each observation that is more than an hour old whether a
    thumbs down came within that hour."""
    closed = await _close(tx, release, 1)
    if release.confirming_id is not None and release.unit == "user":
        await _close(tx, release, 2)
    await _note_first_hours(tx, release)
    return closed


async def _close(tx: AsyncSession, release: Release, number: Literal[1, 2]) -> Counter[ClosedWindow]:
    rules, (is_open, freeze) = ReleaseRules.parse(release.rules), _WINDOWS[number]
    window, unit, closed = timedelta(hours=rules.window_hours), ReleaseUnit, Counter[ClosedWindow]()
    is_over = unit.exposed_at < func.clock_timestamp() - number * window - _SETTLED
    due = select(unit.unit, unit.arm, unit.exposed_at).where(unit.release_id == release.id, text(is_open), is_over)
    while rows := (await tx.execute(due.order_by(unit.exposed_at).limit(_BATCH))).all():
        units = [row.unit for row in rows]
        events = await unit_events(tx, release, units, (number - 1) * window, number * window, rules.outcome)
        frozen = {
            "outcomes": [outcome_of(rules.outcome, events.get(name, ())) for name in units],
            "reports": [name in events for name in units],
            "forecasts": await expected_outcomes(tx, release, [(row.unit, row.exposed_at) for row in rows]),
        }
        await tx.execute(text(_FREEZE.format(freeze, is_open)), {"id": release.id, "units": units, **frozen})
        closed.update(ClosedWindow(Arm(row.arm), "yes" if row.unit in events else "no") for row in rows)
    return closed


_FREEZE = """
    UPDATE release_unit SET {}
    FROM unnest(CAST(:units AS text[]), CAST(:outcomes AS float8[]), CAST(:reports AS boolean[]),
        CAST(:forecasts AS float8[])) AS frozen (name, value, is_reported, expected)
    WHERE release_id = :id AND unit = name AND {}
"""
_WINDOWS = {
    1: (
        "closed_at IS NULL",
        "closed_at = clock_timestamp(), outcome = value, reported = is_reported, forecast = expected",
    ),
    2: ("look IS NULL AND second_outcome IS NULL", "second_outcome = value"),
}
"""When a first or a second window is open, and how it is closed."""


async def late_events(tx: AsyncSession, release: Release) -> Mapping[Arm, int]:
    """Return for each arm how many events on its units were received after their window. They are never counted."""
    rules = ReleaseRules.parse(release.rules)
    deadline = ReleaseUnit.exposed_at + timedelta(hours=rules.window_hours)
    received = received_on_units(release, rules.outcome)
    query = (
        select(ReleaseUnit.arm, func.count())
        .join(received, and_(ReleaseUnit.release_id == release.id, ReleaseUnit.unit == received.c.subject))
        .where(received.c.received_at > deadline)
        .group_by(ReleaseUnit.arm)
    )
    return {Arm(arm): count for arm, count in (await tx.execute(query)).all()}


async def _note_first_hours(tx: AsyncSession, release: Release) -> None:
    row, owned = ReleaseObservation, feedback_on_units(release)
    due = (
        select(row.stage, row.unit)
        .where(
            row.release_id == release.id,
            ~row.values.bool_op("?")(_LATE_KEY),
            row.observed_at < func.clock_timestamp() - _FIRST_HOUR - _SETTLED,
        )
        .order_by(row.observed_at)
        .limit(_BATCH)
    )
    disliked = exists().where(
        owned.c.subject == row.unit,
        Feedback.id == owned.c.id,
        Feedback.type == "thumbs_down",
        Feedback.source == "api",
        Feedback.received_at > row.observed_at,
        Feedback.received_at <= row.observed_at + _FIRST_HOUR,
        in_force(until=row.observed_at + _FIRST_HOUR),
    )
    noted = row.values.op("||")(func.jsonb_build_object(_LATE_KEY, cast(case((disliked, 1.0), else_=0.0), Double)))
    note = (
        update(row)
        .where(row.release_id == release.id, tuple_(row.stage, row.unit).in_(due))
        .values(values=noted)
        .returning(row.unit)
        .execution_options(synchronize_session=False)
    )
    while len((await tx.execute(note)).all()) == _BATCH:
        pass
