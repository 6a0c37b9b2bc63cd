"""Tasks from what users asked and consented to train on: served sessions and questions that are over.

Only the first request of a session or question, and the tool results that later requests contain, can be given to an
agent again. Changes that tools made, later questions, and the agent's memory of earlier tasks cannot. The feedback of
users is about what the agent did at that time.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import (
    ColumnElement,
    Float,
    Interval,
    Select,
    and_,
    cast,
    func,
    literal,
    select,
    true,
    union_all,
)

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.agent_sessions.consent import consented_asks, consented_sessions, refused_sessions
from learnloop_service.app.agent_sessions.records import KeptCall
from learnloop_service.app.agent_sessions.task_draw import DrawableTask, draw_tasks, split_of
from learnloop_service.app.datasets import documents
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, Run, Trajectory
from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.app.feedback.session_opinions import Opinions, comments_on, have, opinions_of, summed_opinions
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.protocol.validation_message import message_of

Filter = TypeVar("Filter", bound="SessionFilter")
NOT_REPLAYED = (
    "Scenarios from sessions hold the first request of each and the answers of its tools that were recorded: other "
    "calls of tools have no recorded answer, and nothing that a tool changed is undone or repeated."
)
NOT_A_REWARD = (
    "Feedback on these sessions is about what the agent did then: it is in the scenarios' references, and no reward of "
    "the new rollouts."
)
_LEAST = 3
SESSION, _ASK = "session", "ask"


class SessionFilter(BaseModel):
    """Selects sessions outside of runs. Fields that are not set do not filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train_on: Literal["tasks", "answers"] = "tasks"
    """What is learned from: the tasks, which are attempted anew, or the answers."""
    model: str | None = Field(default=None, min_length=1, max_length=300)
    """The model name that the session was opened with, such as a promoted one."""
    since: AwareDatetime | None = None
    """The session was opened at that time or later."""
    rewarded: bool | None = None
    """Whether the session ended with a reward."""
    reward_below: float | None = None
    """The session ended with a lower reward than this."""
    feedback: Opinions | None = None
    """Feedback on the session: any, none, more of it against the session (negative), or more in its favor
    (positive)."""
    limit: int = Field(default=1_000, ge=_LEAST, le=10_000)
    """Maximum number of sessions. The newest ones are selected."""

    @property
    def selects(self) -> bool:
        """Whether it selects by how sessions went."""
        return self.rewarded is not None or self.reward_below is not None or self.feedback is not None


def read_filter(model: type[Filter], value: Json, where: Location) -> Filter:
    """Return the filter that a request has at `where`. Raises InvalidRequest."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        raise InvalidRequest((*where, *first["loc"]), message_of(first)) from error


class Pool(NamedTuple):
    """The tasks that can be drawn, and how many of them are new since the last draw."""

    tasks: Sequence[DrawableTask]
    new: int


@dataclass(frozen=True, slots=True)
class SessionScenarios:
    """Scenarios in the form that the environment `agent` accepts, and notes for users who train on them."""

    rows: Sequence[dict[str, Json]]
    users: Mapping[str, str]
    """Hash of the user by scenario id, for those whose user is known."""
    unanswered: int = 0
    """Number of sessions without an answered call."""
    repeated: int = 0
    """Number of sessions with the same task as an earlier one in the order of the draw."""
    notes: Sequence[str] = ()


async def consented_pool(
    database: Database,
    project: str,
    which: SessionFilter,
    since: datetime | None,
    until: datetime,
    new_since: datetime | None,
) -> Pool:
    """Return the consented tasks of known users that ended after `since` (None: at any time) and not after `until`.

    A request that named no user is never used, because users are drawn, assigned to splits, and can have their data
    deleted. The filter's model selects the pool; its reward and feedback only say which tasks are selected in one half
    of it.
    """
    sessions = tasks(project, which, consented_sessions(project)).where(AgentSession.calls > 0)
    both = union_all(sessions, tasks(project, which, consented_asks(project), _ASK)).subquery()
    query = select(both).where(both.c.ended_at <= until, both.c.user_hash.is_not(None))
    if since is not None:
        query = query.where(both.c.ended_at > since)
    async with database() as tx:
        rows = (await tx.execute(query)).all()
    new = sum(new_since is None or row.ended_at > new_since for row in rows)
    return Pool([DrawableTask(row.id, row.user_hash, row.arm, row.selected) for row in rows], new)


async def draw_scenarios(database: Database, pool: Pool, which: SessionFilter, seed: str) -> SessionScenarios:
    """Draw tasks from the pool, and return them as scenarios that keep their probability of inclusion."""
    drawn = draw_tasks(pool.tasks, which.limit, seed, selecting=which.selects)
    users = {drawable.id: drawable.user for drawable in pool.tasks}
    scenarios = await _scenarios(database, drawn, users)
    for row in scenarios.rows:
        row["split"] = split_of(users[row["id"]])
        row["reference"]["inclusion_probability"] = drawn[row["id"]]
    return scenarios


async def stored_scenarios(database: Database, project: str, scenarios: SessionScenarios) -> dict[str, Json]:
    """Store the scenarios, with links to their users, and return the reference to them. Raises ValueError for NaN."""
    new = documents.document(project, "scenarios", scenarios.rows)
    async with database.begin() as tx:
        await documents.save_of_users(tx, new, scenarios.users)
    return dict(new.reference)


async def scenarios_of_sessions(database: Database, project: str, which: SessionFilter) -> SessionScenarios:
    """Make scenarios from the newest sessions that the filter selects. Raises ValueError if there are too few."""
    consented, refused = (
        tasks(project, which, consent(project)).subquery() for consent in (consented_sessions, refused_sessions)
    )
    newest = select(consented).where(consented.c.selected).order_by(consented.c.id.desc()).limit(which.limit)
    async with database() as tx:
        sessions = (await tx.execute(newest)).all()
        unused = (await tx.execute(select(func.count()).where(refused.c.selected))).scalar_one()
    users = {row.id: row.user_hash for row in sessions if row.user_hash is not None}
    scenarios = await _scenarios(database, [row.id for row in sessions], users)
    without = (
        f"not used, although the filter fits: {counted(unused, 'session')} opened without "
        '"train": true, outside the projects of LEARNLOOP_TRAIN_ON_PROJECTS, or with "train": false.'
    )
    if len(scenarios.rows) < _LEAST:
        raise ValueError(
            f"the filter finds {counted(len(sessions), 'session')} outside of runs with consent to training, and "
            f"{counted(len(scenarios.rows), 'different task')} with an answer; at least {_LEAST} are needed"
            + (f". {without}" if unused else "")
        )
    rated = await _add_opinions(database, [row["reference"] for row in scenarios.rows])
    origin = (
        f"{counted(len(scenarios.rows), 'scenario')} from {counted(len(sessions), 'session')}; left out: "
        f"{scenarios.unanswered} without an answered call, {scenarios.repeated} with the task of a newer one."
    )
    notes = [origin, *([without] if unused else []), NOT_REPLAYED, *([NOT_A_REWARD] if rated else [])]
    return replace(scenarios, notes=notes)


async def _add_opinions(database: Database, references: Sequence[dict[str, Json]]) -> bool:
    """Add the feedback on sessions to the references that name them, and return whether there is any."""
    opinions = await opinions_of(database, [reference["session_id"] for reference in references])
    comments = await comments_on(database, opinions)
    for reference in references:
        if (opinion := opinions.get(id := reference["session_id"])) is not None:
            comment = list(comments.get(id, ()))
            reference["feedback"] = {"wins": opinion.wins, "losses": opinion.losses, "comments": comment}
    return bool(opinions)


async def _scenarios(database: Database, ids: Iterable[str], users: Mapping[str, str]) -> SessionScenarios:
    """Return the tasks with these ids. Left out are those without an answered call, and those with the same text as an
    earlier one, since it could otherwise be in two splits."""
    rows, unanswered, repeated = dict[str, dict[str, Json]](), 0, 0
    for id in ids:
        if (scenario := await _task(database, id)) is None:
            unanswered += 1
            continue
        text = json.dumps(scenario[0], sort_keys=True)
        repeated += text in rows
        rows.setdefault(text, {"id": id, "task": scenario[0], "reference": scenario[1]})
    of_rows = {row["id"]: users[row["id"]] for row in rows.values() if row["id"] in users}
    return SessionScenarios(list(rows.values()), of_rows, unanswered, repeated)


def tasks(
    project: str, which: SessionFilter, consent: ColumnElement[bool], kind: str = SESSION, *more: Any
) -> Select[Any]:
    """Select tasks of one kind with `more` columns, and whether the filter selects them by reward and feedback."""
    row: Any = AgentSession
    name, at, ended, reward = row.asked_model, row.opened_at, row.ended_at, cast(row.outcome["reward"].astext, Float)
    if kind == _ASK:
        row = Trajectory
        name, at, reward = row.asked_as, row.started_at, row.reward
        ended = at + cast(func.make_interval(0, 0, 0, 0, 0, 0, row.seconds), Interval)
    summed = summed_opinions(Feedback.project == project, of_trajectories=kind == _ASK)
    selected: list[ColumnElement[bool]] = [true()]
    if which.rewarded is not None:
        selected.append(reward.is_not(None) if which.rewarded else reward.is_(None))
    if which.reward_below is not None:
        selected.append(reward < which.reward_below)
    if which.feedback is not None:
        selected.append(have(which.feedback, summed))
    is_selected = func.coalesce(and_(*selected), literal(False)).label("selected")
    id = (f"{kind}." + row.id).label("id")
    query = select(id, row.user_hash, row.arm, ended.label("ended_at"), is_selected, *more).where(consent)
    if which.model is not None:
        own = which.model.removeprefix(f"{project}/")
        query = query.where(name.in_((own, f"{project}/{own}")))  # requests can give either
    if which.since is not None:
        query = query.where(at >= which.since)
    if kind == _ASK:
        query = query.outerjoin(Run, Run.id == row.run_id)
    return query.outerjoin(summed, summed.c.subject == row.id) if which.feedback else query


async def _task(database: Database, id: str) -> tuple[Json, dict[str, Json]] | None:
    """Return the task and the reference of a scenario; None if nothing answered, or if it was deleted meanwhile."""
    kind, _, own_id = id.partition(".")
    async with database() as tx:
        row = await tx.get(AgentSession, own_id) if kind == SESSION else await tx.get(Trajectory, own_id)
    if isinstance(row, Trajectory):
        first = list(takewhile(lambda message: message.get("role") != "assistant", row.messages))
        task = {"messages": first, "tools": list(row.tools), "tool_results": list(tool_results(row.messages))}
        return task, {"trajectory_id": own_id, "outcome": dict(row.outcome)}
    calls = [call for call in await SessionCalls(database).listed(own_id) if call.completion is not None]
    return None if row is None or not calls else (_task_of_calls(calls), {"session_id": own_id, "outcome": row.outcome})


def _task_of_calls(calls: Sequence[KeptCall]) -> Json:
    """Return the task that a session began with: its first request, and what its tools answered."""
    first = calls[0].request
    results = {
        json.dumps(result, sort_keys=True): result for call in calls for result in tool_results(call.request.messages)
    }
    return {"messages": list(first.messages), "tools": list(first.tools), "tool_results": list(results.values())}


def tool_results(messages: Sequence[Mapping[str, Json]]) -> Iterator[Json]:
    """Yield each answered tool call in a conversation, with its result."""
    functions: dict[str, Json] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            functions[call["id"]] = call.get("function") or {}
        if message.get("role") == "tool" and (function := functions.get(str(message.get("tool_call_id")))) is not None:
            yield {
                "name": function.get("name"),
                "arguments": function.get("arguments"),
                "content": message.get("content"),
            }
