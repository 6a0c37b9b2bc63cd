"""Users' feedback on production sessions, summed for each session."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from sqlalchemy import ColumnElement, Subquery, func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Feedback
from learnloop_service.app.feedback.sums import events_about, sums_of
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.app.schemas.agent_sessions import AgentSessionOpinions

_MOST_COMMENTS = 10


class Opinions(StrEnum):
    """Kinds of opinions that a session can have, to filter by."""

    ANY = "any"
    NONE = "none"
    POSITIVE = "positive"
    NEGATIVE = "negative"


def summed_opinions(*which: ColumnElement[bool], of_trajectories: bool = False) -> Subquery:
    """Select one row for each session, or trajectory, that has opinions: subject, events, wins, losses, simulated."""
    if of_trajectories:
        events = events_about(Feedback.trajectory_id, Feedback.against_id, *which)
    else:
        events = events_about(Feedback.session_id, Feedback.against_session_id, *which)
    columns = (events.c.subject, func.count().label("events"), *sums_of(events))
    return select(*columns).group_by(events.c.subject).subquery()


def have(opinions: Opinions, summed: Subquery) -> ColumnElement[bool]:
    """Return the SQL condition for rows that are outer joined with `summed_opinions`."""
    return {
        Opinions.ANY: summed.c.subject.is_not(None),
        Opinions.NONE: summed.c.subject.is_(None),
        Opinions.POSITIVE: summed.c.wins > summed.c.losses,
        Opinions.NEGATIVE: summed.c.losses > summed.c.wins,
    }[opinions]


async def opinions_of(database: Database, ids: Collection[str]) -> Mapping[str, AgentSessionOpinions]:
    """Return the opinions of those sessions that have any. Preferences of other sessions over them are among them."""
    listed = sorted(ids)
    summed = summed_opinions(Feedback.session_id.in_(listed) | Feedback.against_session_id.in_(listed))
    query = select(summed).where(summed.c.subject.in_(listed))
    async with database() as tx:
        rows = await tx.execute(query)
    return {row.subject: AgentSessionOpinions.of(row) for row in rows}


async def comments_on(database: Database, ids: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the newest ten comments on each session that has any, newest first."""
    query = (
        select(Feedback.session_id, Feedback.comment)
        .where(Feedback.session_id.in_(sorted(ids)), Feedback.comment.is_not(None), in_force())
        .order_by(Feedback.id.desc())
    )
    comments: defaultdict[str, list[str]] = defaultdict(list)
    async with database() as tx:
        for id, comment in await tx.execute(query):
            if id is not None and comment is not None and len(comments[id]) < _MOST_COMMENTS:
                comments[id].append(comment)
    return comments
