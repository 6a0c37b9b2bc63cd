"""What became of the units of a release: each one's outcome is frozen when its window is over.

An outcome is a function of the set of events that were received within the window, and of the database's clock alone.
The order of the events and their repetition, also under other ids, cannot matter. Counting events on arrival instead
would count good news first, because "nothing happened" is only known at the end.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    literal_column,
    null,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import AgentSession, Feedback, Release, ReleaseObservation, ReleaseUnit, Trajectory
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.domain.release_rules import Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.feedback.sums import OUTCOME
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.feedback import ONLINE
from learnloop_service.training.protocol.model_name import ModelName

_BATCH = 1_000
"""Number of units or observations in one statement."""
_SETTLED = timedelta(seconds=30)
"""How long after its end a window is closed: an event that was received in time can still be about to be committed. A
transaction that is idle for longer is ended by the database."""
_FIRST_HOUR = timedelta(hours=1)
_LATE_KEY: ColumnElement[str] = literal_column(f"'{Guardrail.THUMBS_DOWN_1H}'")
"""In the form of the partial index, which Postgres recognizes only literally."""


@dataclass(frozen=True, slots=True)
class UnitEvent:
    """An event that counts for a unit: feedback, or the end of one of its sessions with a reward."""

    type: str
    """A type of feedback, or `session_reward`."""
    occurred_at: datetime
    name: str | None = None
    value: float | None = None


def outcome_of(rule: Mapping[str, Any], events: Iterable[UnitEvent]) -> float:
    """Return the outcome, in [0, 1], of a unit with these events. It also has a value without any event.

    The last opinion or value by the time at which it happened counts; the furthest stage of a funnel; and the reward of
    the first session that ended with one. Of two at the same time, the lower one counts.
    """
    [(form, parameter)] = rule.items()
    distinct = set(events)
    if form == "feedback":
        opinions = [(event.occurred_at, float(parameter[event.type])) for event in distinct if event.type in _THUMBS]
        return _last(opinions, float(parameter["none"]))
    if form == "event":
        return float(any(ONLINE.get(event.type, -1.0) >= ONLINE[parameter] for event in distinct))
    if form == "value":
        reported = [
            (event.occurred_at, event.value) for event in distinct if (event.type, event.name) == (OUTCOME, parameter)
        ]
        return _last([(at, value) for at, value in reported if value is not None], 0.0)
    low, high = parameter
    rewards = [
        (event.occurred_at, event.value) for event in distinct if event.type == _REWARD and event.value is not None
    ]
    return min(max((min(rewards)[1] - low) / (high - low), 0.0), 1.0) if rewards else 0.0


def _last(timed: Collection[tuple[datetime, float]], otherwise: float) -> float:
    return max(timed, key=lambda observation: (observation[0], -observation[1]))[1] if timed else otherwise


_THUMBS = ("thumbs_up", "thumbs_down")
_REWARD = "session_reward"


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """The arm of a unit whose window was closed, and whether anything was reported about it in time."""

    arm: Arm
    reported: Literal["yes", "no"]


async def close_windows(tx: AsyncSession, release: Release) -> Counter[ClosedWindow]:
    """Freeze the outcomes of the units whose window is over, and return what they were like. Also note for each
    observation that is more than an hour old whether a thumbs down came within that hour."""
    rules, closed = ReleaseRules.parse(release.rules), Counter[ClosedWindow]()
    window = timedelta(hours=rules.window_hours)
    over = and_(
        ReleaseUnit.release_id == release.id,
        ReleaseUnit.closed_at.is_(None),
        ReleaseUnit.exposed_at < func.clock_timestamp() - window - _SETTLED,
    )
    due = select(ReleaseUnit.unit, ReleaseUnit.arm).where(over).order_by(ReleaseUnit.exposed_at).limit(_BATCH)
    while arms := {unit: Arm(arm) for unit, arm in (await tx.execute(due)).all()}:
        units = list(arms)
        events = await _events(tx, release, units, window, rules.outcome)
        await tx.execute(
            _FREEZE,
            {
                "id": release.id,
                "units": units,
                "outcomes": [outcome_of(rules.outcome, events.get(unit, ())) for unit in units],
            },
        )
        closed.update(ClosedWindow(arm, "yes" if unit in events else "no") for unit, arm in arms.items())
    await _note_first_hours(tx, release)
    return closed


_FROZEN = (
    func.unnest(bindparam("units", type_=ARRAY(Text)), bindparam("outcomes", type_=ARRAY(Double)))
    .table_valued(column("unit", Text), column("outcome", Double))
    .render_derived("frozen")
)
_FREEZE = (
    update(ReleaseUnit)
    .where(
        ReleaseUnit.release_id == bindparam("id"), ReleaseUnit.unit == _FROZEN.c.unit, ReleaseUnit.closed_at.is_(None)
    )
    .values(closed_at=func.clock_timestamp(), outcome=_FROZEN.c.outcome)
    .execution_options(synchronize_session=False)
)


async def late_events(tx: AsyncSession, release: Release) -> Mapping[Arm, int]:
    """Return for each arm how many events on its units were received after their window. They are never counted."""
    rules = ReleaseRules.parse(release.rules)
    deadline = ReleaseUnit.exposed_at + timedelta(hours=rules.window_hours)
    received = _received(release, rules.outcome)
    query = (
        select(ReleaseUnit.arm, func.count())
        .join(received, and_(ReleaseUnit.release_id == release.id, ReleaseUnit.unit == received.c.unit))
        .where(received.c.received_at > deadline)
        .group_by(ReleaseUnit.arm)
    )
    return {Arm(arm): count for arm, count in (await tx.execute(query)).all()}


async def _events(
    tx: AsyncSession, release: Release, units: Sequence[str], window: timedelta, rule: Mapping[str, Json]
) -> Mapping[str, list[UnitEvent]]:
    """Return the events of these units that were received within their windows and count."""
    by_unit: dict[str, list[UnitEvent]] = {}
    deadline = ReleaseUnit.exposed_at + window
    owned = _feedback_of(release)
    conditions = (ReleaseUnit.release_id == release.id, ReleaseUnit.unit.in_(units))
    reported = (
        select(ReleaseUnit.unit, Feedback.type, Feedback.occurred_at, Feedback.outcome_name, Feedback.value)
        .join(owned, owned.c.unit == ReleaseUnit.unit)
        .join(Feedback, Feedback.id == owned.c.id)
        .where(*conditions, Feedback.source == "api", in_force(until=deadline))
        .where(Feedback.received_at > ReleaseUnit.exposed_at, Feedback.received_at <= deadline)
    )
    rows: list[Any] = list((await tx.execute(reported)).all())
    if _REWARD in rule:
        ended = _rewarded(release).subquery()
        of_units = (
            select(ended.c.unit, literal(_REWARD), ended.c.received_at, null(), ended.c.reward)
            .join(ReleaseUnit, ReleaseUnit.unit == ended.c.unit)
            .where(*conditions, ended.c.received_at > ReleaseUnit.exposed_at, ended.c.received_at <= deadline)
        )
        rows += (await tx.execute(of_units)).all()
    for row in rows:
        by_unit.setdefault(row[0], []).append(UnitEvent(*row[1:]))
    return by_unit


def _feedback_of(release: Release) -> Subquery:
    """Select the units of a release and the ids of the feedback on them: `unit`, `id`.

    Feedback is on what a unit was answered, or on a user as such, for answers that are not stored.
    """
    of_sessions = (
        select(_unit_of_session(release).label("unit"), Feedback.id)
        .join(AgentSession, AgentSession.id == Feedback.session_id)
        .where(AgentSession.release_id == release.id)
    )
    if release.unit == "session":
        return of_sessions.subquery()
    return union_all(
        of_sessions,
        select(Trajectory.user_hash, Feedback.id)
        .join(Trajectory, Trajectory.id == Feedback.trajectory_id)
        .where(Trajectory.release_id == release.id),
        select(Feedback.user_hash, Feedback.id).where(
            Feedback.user_hash.is_not(None),
            Feedback.project == release.project,
            Feedback.asked_as == str(ModelName(release.project, release.name)),
        ),
    ).subquery()


def _rewarded(release: Release) -> Select[Any]:
    """Select the sessions that ended with a reward: `unit`, `received_at`, `reward`."""
    reward = AgentSession.outcome["reward"].as_float()
    return select(
        _unit_of_session(release).label("unit"),
        AgentSession.ended_at.label("received_at"),
        reward.label("reward"),
    ).where(AgentSession.release_id == release.id, AgentSession.state == AgentSessionState.ENDED, reward.is_not(None))


def _received(release: Release, rule: Mapping[str, Json]) -> Subquery:
    """Select everything that was received about the units of a release: `unit`, `received_at`."""
    owned = _feedback_of(release)
    reported = (
        select(owned.c.unit, Feedback.received_at)
        .join(Feedback, Feedback.id == owned.c.id)
        .where(Feedback.source == "api")
    )
    if _REWARD not in rule:
        return reported.subquery()
    ended = _rewarded(release).subquery()
    return union_all(reported, select(ended.c.unit, ended.c.received_at)).subquery()


def _unit_of_session(release: Release) -> Any:
    return AgentSession.id if release.unit == "session" else AgentSession.user_hash


async def _note_first_hours(tx: AsyncSession, release: Release) -> None:
    row, owned = ReleaseObservation, _feedback_of(release)
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
        owned.c.unit == row.unit,
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
