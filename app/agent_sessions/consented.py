"""Tasks from what users asked and consented to train on: served sessions and questions that are over.

Every task keeps the hash of its user, because users are drawn, assigned to splits, and can have their data deleted. A
request that named no user is therefore never used.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Interval, Select, and_, cast, false, func, literal, select, true, union_all

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.agent_sessions.consent import consented_asks, consented_sessions
from learnloop_service.app.agent_sessions.task_draw import DrawableTask, draw_tasks, split_of
from learnloop_service.app.agent_sessions.traffic import (
    REWARD,
    SessionFilter,
    fits_rewards,
    task_of_calls,
    tool_results,
)
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, Run, Trajectory
from learnloop_service.app.feedback.session_opinions import have, summed_opinions
from learnloop_service.environment.json_type import Json

_SESSION, _ASK = "session", "ask"


@dataclass(frozen=True, slots=True)
class Pool:
    """The tasks that can be drawn."""

    tasks: Sequence[DrawableTask]
    new: int
    """Number of them that are new since the last draw."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Scenarios in the form that the environment `agent` accepts."""

    rows: Sequence[dict[str, Json]]
    users: Mapping[str, str]
    """Hash of the user by scenario id."""


async def consented_pool(
    database: Database,
    project: str,
    which: SessionFilter,
    since: datetime | None,
    until: datetime,
    new_since: datetime | None,
) -> Pool:
    """Return the consented tasks that ended after `since` (None: at any time) and not after `until`.

    The filter's model selects the pool; its reward and feedback only say which tasks are selected in one half of it.
    """
    both = union_all(_sessions(project, which), _asks(project, which)).subquery()
    query = select(both).where(both.c.ended_at <= until)
    if which.since is not None:
        query = query.where(both.c.ended_at >= which.since)
    if since is not None:
        query = query.where(both.c.ended_at > since)
    async with database() as tx:
        rows = (await tx.execute(query)).all()
    new = sum(new_since is None or row.ended_at > new_since for row in rows)
    return Pool([DrawableTask(row.id, row.user_hash, row.arm, row.selected) for row in rows], new)


async def draw_scenarios(database: Database, pool: Pool, which: SessionFilter, seed: str) -> Drawn:
    """Draw tasks from the pool, and return them as scenarios that keep their probability of inclusion.

    Left out are tasks without an answered call, and those with the same text as one that was drawn before, since it
    could otherwise be in two splits.
    """
    drawn = draw_tasks(pool.tasks, which.limit, seed, selecting=_selects(which))
    users = {drawable.id: drawable.user for drawable in pool.tasks}
    rows, texts = list[dict[str, Json]](), set[str]()
    for id, probability in drawn.items():
        scenario = await _task(database, id)
        if scenario is None or (text := json.dumps(scenario[0], sort_keys=True)) in texts:
            continue
        texts.add(text)
        task, reference = scenario
        reference["inclusion_probability"] = probability
        rows.append({"id": id, "split": split_of(users[id]), "task": task, "reference": reference})
    return Drawn(rows, {row["id"]: users[row["id"]] for row in rows})


def _selects(which: SessionFilter) -> bool:
    return which.rewarded is not None or which.reward_below is not None or which.feedback is not None


def _sessions(project: str, which: SessionFilter) -> Select[*tuple[Any, ...]]:
    row, summed = AgentSession, summed_opinions(Feedback.project == project)
    query = select(
        (f"{_SESSION}." + row.id).label("id"),
        row.user_hash,
        row.arm,
        row.ended_at,
        _selected(which, REWARD, have(which.feedback, summed) if which.feedback else None).label("selected"),
    ).where(consented_sessions(project), row.user_hash.is_not(None), row.calls > 0)
    if which.model is not None:
        query = query.where(row.asked_model.in_(_names(project, which.model)))
    return query.outerjoin(summed, summed.c.subject == row.id) if which.feedback else query


def _asks(project: str, which: SessionFilter) -> Select[*tuple[Any, ...]]:
    row, summed = Trajectory, summed_opinions(Feedback.project == project, of_trajectories=True)
    query = (
        select(
            (f"{_ASK}." + row.id).label("id"),
            row.user_hash,
            row.arm,
            (row.started_at + cast(func.make_interval(0, 0, 0, 0, 0, 0, row.seconds), Interval)).label("ended_at"),
            _selected(which, row.reward, have(which.feedback, summed) if which.feedback else None).label("selected"),
        )
        .outerjoin(Run, Run.id == row.run_id)
        .where(consented_asks(project), row.user_hash.is_not(None))
    )
    if which.model is not None:
        query = query.where(row.asked_as.in_(_names(project, which.model)))
    return query.outerjoin(summed, summed.c.subject == row.id) if which.feedback else query


def _selected(which: SessionFilter, reward: Any, opinions: ColumnElement[bool] | None) -> ColumnElement[bool]:
    if not _selects(which):
        return false()
    conditions = [*fits_rewards(which, reward), *([] if opinions is None else [opinions])]
    return func.coalesce(and_(true(), *conditions), literal(False))


def _names(project: str, model: str) -> tuple[str, str]:
    """Return a promoted name with and without its project: requests can give either."""
    name = model.removeprefix(f"{project}/")
    return name, f"{project}/{name}"


async def _task(database: Database, id: str) -> tuple[Json, dict[str, Json]] | None:
    """Return the task and the reference of a scenario; None if nothing answered, or if it was deleted meanwhile."""
    kind, _, own_id = id.partition(".")
    if kind == _SESSION:
        return await _task_of_session(database, own_id)
    async with database() as tx:
        row = await tx.get(Trajectory, own_id)
    if row is None:
        return None
    first = list(takewhile(lambda message: message.get("role") != "assistant", row.messages))
    task = {"messages": first, "tools": list(row.tools), "tool_results": list(tool_results(row.messages))}
    return task, {"trajectory_id": own_id, "outcome": dict(row.outcome)}


async def _task_of_session(database: Database, id: str) -> tuple[Json, dict[str, Json]] | None:
    async with database() as tx:
        row = await tx.get(AgentSession, id)
    calls = [call for call in await SessionCalls(database).listed(id) if call.completion is not None]
    if row is None or not calls:
        return None
    return task_of_calls(calls), {"session_id": id, "outcome": row.outcome}
