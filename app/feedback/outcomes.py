"""What became of an answer: its outcome is a function of the set of events that were received within its window.

The order of the events and their repetition, also under other ids, cannot matter. Counting events on arrival instead
would count good news first, because "nothing happened" is only known at the end. Events are on the units of a release,
or on single sessions.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, Text, and_, any_, case, func, literal, null, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.db.tables import AgentSession, Feedback, Release, ReleaseUnit, Trajectory
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.feedback.sums import OUTCOME
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.feedback import ONLINE
from learnloop_service.training.protocol.model_name import ModelName

THUMBS_ONLY = "The outcome is thumbs only, which can be won by asking for them: prefer one that your system reports."


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


async def unit_events(
    tx: AsyncSession, release: Release, units: Sequence[str], start: timedelta, end: timedelta, rule: Mapping[str, Json]
) -> Mapping[str, list[UnitEvent]]:
    """Return the events of these units of a release that count, if they were received in that time after the unit was
    exposed."""
    row = ReleaseUnit
    windows = _windows(row.unit, row.exposed_at, start, end).where(row.release_id == release.id, row.unit.in_(units))
    return await _events(tx, windows, feedback_on_units(release), _ends_of_units(release), rule)


async def session_events(
    tx: AsyncSession, project: str, session_ids: Sequence[str], window: timedelta, rule: Mapping[str, Json]
) -> Mapping[str, list[UnitEvent]]:
    """Return the events of these sessions that count, if they were received within the window after the session was
    opened. What happened to a user belongs to the user's last session before it."""
    row = AgentSession
    chosen = and_(row.project == project, is_one_of(row.id, session_ids))
    windows = _windows(row.id, row.opened_at, timedelta(0), window).where(chosen)
    return await _events(tx, windows, _feedback_on_sessions(project, chosen), _ends(row.id, chosen), rule)


def is_one_of(column: InstrumentedAttribute[str], values: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition for the column to have one of the values, of which there can be any number."""
    return column == any_(literal(values, ARRAY(Text)))


def _windows(subject: Any, at: Any, start: timedelta, end: timedelta) -> Select[Any]:
    return select(subject.label("subject"), (at + start).label("since"), (at + end).label("until"))


async def _events(
    tx: AsyncSession, of: Select[Any], owned: Subquery, ends: Subquery, rule: Mapping[str, Json]
) -> Mapping[str, list[UnitEvent]]:
    """Return the events that were received in windows (`subject`, `since`, `until`): of feedback (`subject`, `id`), and
    ends of sessions if the rule rests on them."""
    windows = of.subquery()
    reported = (
        select(windows.c.subject, Feedback.type, Feedback.occurred_at, Feedback.outcome_name, Feedback.value)
        .join(owned, owned.c.subject == windows.c.subject)
        .join(Feedback, Feedback.id == owned.c.id)
        .where(Feedback.source == "api", in_force(until=windows.c.until))
        .where(Feedback.received_at > windows.c.since, Feedback.received_at <= windows.c.until)
    )
    rewarded = (
        select(windows.c.subject, literal(_REWARD), ends.c.received_at, null(), ends.c.reward)
        .join(ends, ends.c.subject == windows.c.subject)
        .where(ends.c.received_at > windows.c.since, ends.c.received_at <= windows.c.until)
    )
    by_subject = defaultdict[str, list[UnitEvent]](list)
    for query in (reported, rewarded) if _REWARD in rule else (reported,):
        for subject, *event in await tx.execute(query):
            by_subject[subject].append(UnitEvent(*event))
    return by_subject


def received_on_units(release: Release, rule: Mapping[str, Json]) -> Subquery:
    """Select everything that was received about the units of a release: `subject`, `received_at`."""
    owned, ends = feedback_on_units(release), _ends_of_units(release)
    reported = select(owned.c.subject, Feedback.received_at).where(Feedback.id == owned.c.id, Feedback.source == "api")
    rewarded = [select(ends.c.subject, ends.c.received_at)] if _REWARD in rule else []
    return reported.union_all(*rewarded).subquery()


def feedback_on_units(release: Release) -> Subquery:
    """Select the units of a release and the ids of the feedback on them: `subject`, `id`.

    Feedback is on what a unit was answered, or on a user as such, for answers that are not stored.
    """
    on_sessions = select(_unit_of_session(release).label("subject"), Feedback.id).where(
        AgentSession.release_id == release.id, AgentSession.id == Feedback.session_id
    )
    if release.unit == "session":
        return on_sessions.subquery()
    on_answers = select(Trajectory.user_hash, Feedback.id).where(
        Trajectory.release_id == release.id, Trajectory.id == Feedback.trajectory_id
    )
    name = str(ModelName(release.project, release.name))
    on_users = select(Feedback.user_hash, Feedback.id).where(
        Feedback.user_hash.is_not(None), Feedback.project == release.project, Feedback.asked_as == name
    )
    return on_sessions.union_all(on_answers, on_users).subquery()


def _ends_of_units(release: Release) -> Subquery:
    return _ends(_unit_of_session(release), AgentSession.release_id == release.id)


def name_asked(project: str) -> ColumnElement[str]:
    """Return the name that a session was opened with, as PROJECT/NAME."""
    asked = AgentSession.asked_model
    return case((asked.startswith(f"{project}/", autoescape=True), asked), else_=f"{project}/" + asked)


def _feedback_on_sessions(project: str, chosen: ColumnElement[bool]) -> Subquery:
    """Select the chosen sessions and the ids of the feedback on them and on their users: `subject`, `id`."""
    row, name = AgentSession, name_asked(project)
    following = func.lead(row.opened_at).over(partition_by=(row.user_hash, name), order_by=(row.opened_at, row.id))
    opened = (
        select(row.id, row.user_hash, row.opened_at, name.label("name"), following.label("following"))
        .where(row.project == project, row.user_hash.in_(select(row.user_hash).where(chosen)))
        .subquery()
    )
    on_users = select(opened.c.id.label("subject"), Feedback.id).where(
        Feedback.project == project,
        Feedback.user_hash == opened.c.user_hash,
        Feedback.asked_as == opened.c.name,
        Feedback.occurred_at > opened.c.opened_at,
        or_(opened.c.following.is_(None), Feedback.occurred_at <= opened.c.following),
    )
    on_sessions = select(row.id.label("subject"), Feedback.id).where(chosen, row.id == Feedback.session_id)
    return on_sessions.union_all(on_users).subquery()


def _ends(subject: Any, which: ColumnElement[bool]) -> Subquery:
    """Select the ends of sessions with a reward: `subject`, `received_at`, `reward`."""
    reward = AgentSession.outcome["reward"].as_float()
    ended = select(subject.label("subject"), AgentSession.ended_at.label("received_at"), reward.label("reward"))
    return ended.where(which, AgentSession.state == AgentSessionState.ENDED, reward.is_not(None)).subquery()


def _unit_of_session(release: Release) -> Any:
    return AgentSession.id if release.unit == "session" else AgentSession.user_hash
