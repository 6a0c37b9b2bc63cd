"""Scenarios from production sessions: what agents were asked there, and what their tools returned.

Only a session's first request, and the tool results that later requests contain, can be given to an agent again.
Changes that tools made, later questions, and the agent's memory of earlier tasks cannot. The feedback of users is about
what the agent did at that time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Float, Select, cast, func, select

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.agent_sessions.consent import consented_sessions, refused_sessions
from learnloop_service.app.agent_sessions.records import KeptCall
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback
from learnloop_service.app.feedback.session_opinions import Opinions, comments_on, have, opinions_of, summed_opinions
from learnloop_service.app.schemas.agent_sessions import AgentSessionOpinions
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

NOT_REPLAYED = (
    "Scenarios from sessions hold the first request of each and the answers of its tools that were recorded: other "
    "calls of tools have no recorded answer, and nothing that a tool changed is undone or repeated."
)
NOT_A_REWARD = (
    "Feedback on these sessions is about what the agent did then: it is in the scenarios' references, and no reward of "
    "the new rollouts."
)
_LEAST = 3


class SessionFilter(BaseModel):
    """Selects sessions outside of runs. Fields that are not set do not filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(default=None, max_length=300)
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


@dataclass(frozen=True, slots=True)
class SessionScenarios:
    """The scenarios made from the sessions that were found."""

    rows: Sequence[Json]
    """Scenarios in the form that the environment `agent` accepts."""
    sessions: int
    """Number of sessions that were found."""
    unanswered: int
    """Number of sessions without an answered call."""
    repeated: int
    """Number of sessions with the same task as a newer one."""
    rated: int
    """Number of scenarios whose session has feedback."""
    users: Mapping[str, str]
    """Hash of the user by scenario id, for those whose user is known."""
    refused: int
    """Number of sessions that fit the filter but may not be trained on."""

    @property
    def notes(self) -> list[str]:
        """Notes for users who train on the scenarios."""
        origin = (
            f"{counted(len(self.rows), 'scenario')} from {counted(self.sessions, 'session')}; left out: "
            f"{self.unanswered} without an answered call, {self.repeated} with the task of a newer one."
        )
        without = [_unused(self.refused)] if self.refused else []
        return [origin, *without, NOT_REPLAYED, *([NOT_A_REWARD] if self.rated else [])]


async def scenarios_of_sessions(database: Database, project: str, which: SessionFilter) -> SessionScenarios:
    """Make scenarios from the selected sessions. Raises ValueError if there are too few."""
    calls, rows, unanswered, repeated = SessionCalls(database), dict[str, Json](), 0, 0
    sessions, refused = await _selected_sessions(database, project, which)
    opinions = await opinions_of(database, [session.id for session in sessions])
    comments = await comments_on(database, opinions)
    for session in sessions:
        answered = [call for call in await calls.listed(session.id) if call.completion is not None]
        if not answered:
            unanswered += 1
            continue
        task = task_of_calls(answered)
        text = json.dumps(task, sort_keys=True)
        repeated += text in rows
        rows.setdefault(text, _row(session, task, opinions.get(session.id), comments.get(session.id, ())))
    if len(rows) < _LEAST:
        raise ValueError(
            f"the filter finds {counted(len(sessions), 'session')} outside of runs with consent to training, and "
            f"{counted(len(rows), 'different task')} with an answer; at least {_LEAST} are needed"
            + (f". {_unused(refused)}" if refused else "")
        )
    rated = sum("feedback" in row["reference"] for row in rows.values())
    row_ids = {row["id"] for row in rows.values()}
    hashes = {_id(session): session.user_hash for session in sessions if session.user_hash is not None}
    users = {id: user for id, user in hashes.items() if id in row_ids}
    return SessionScenarios(list(rows.values()), len(sessions), unanswered, repeated, rated, users, refused)


def _unused(refused: int) -> str:
    return (
        f"not used, although the filter fits: {counted(refused, 'session')} opened without "
        '"train": true, outside the projects of LEARNLOOP_TRAIN_ON_PROJECTS, or with "train": false.'
    )


REWARD = cast(AgentSession.outcome["reward"].astext, Float)
"""The reward that a session ended with; null without one."""


def fits_rewards(which: SessionFilter, reward: ColumnElement[float]) -> list[ColumnElement[bool]]:
    """Return the SQL conditions that the filter sets on a reward."""
    conditions = list[ColumnElement[bool]]()
    if which.rewarded is not None:
        conditions.append(reward.is_not(None) if which.rewarded else reward.is_(None))
    if which.reward_below is not None:
        conditions.append(reward < which.reward_below)
    return conditions


async def _selected_sessions(
    database: Database, project: str, which: SessionFilter
) -> tuple[Sequence[AgentSession], int]:
    """Return the selected sessions, newest first, and how many more there are without consent to train on them.

    Only sessions that are over are selected.
    """
    newest = select(AgentSession).where(consented_sessions(project)).order_by(AgentSession.id.desc())
    refused = select(func.count()).select_from(AgentSession).where(refused_sessions(project))
    async with database() as tx:
        sessions = (await tx.execute(_fitting(newest, project, which).limit(which.limit))).scalars().all()
        return sessions, (await tx.execute(_fitting(refused, project, which))).scalar_one()


def _fitting(query: Select[Any], project: str, which: SessionFilter) -> Select[Any]:
    """Add the filter's conditions to a query of sessions."""
    if which.model is not None:
        query = query.where(AgentSession.asked_model == which.model)
    if which.since is not None:
        query = query.where(AgentSession.opened_at >= which.since)
    if which.feedback is not None:
        summed = summed_opinions(Feedback.project == project)
        query = query.outerjoin(summed, summed.c.subject == AgentSession.id).where(have(which.feedback, summed))
    return query.where(*fits_rewards(which, REWARD))


def _row(session: AgentSession, task: Json, opinions: AgentSessionOpinions | None, comments: Sequence[str]) -> Json:
    reference: dict[str, Json] = {"session_id": session.id, "outcome": session.outcome}
    if opinions is not None:
        reference["feedback"] = {"wins": opinions.wins, "losses": opinions.losses, "comments": list(comments)}
    return {"id": _id(session), "task": task, "reference": reference}


def _id(session: AgentSession) -> str:
    return f"session.{session.id}"


def task_of_calls(calls: Sequence[KeptCall]) -> Json:
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
