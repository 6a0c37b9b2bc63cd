"""Finds the texts that an agent itself brings to its model, in the requests of its sessions."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, or_, select

from learnloop_service.app.agent_sessions.records import KeptRequest, unpack_request
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import EVALUATION, RUN, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, EvaluationJob, Run, SessionCall
from learnloop_service.app.domain.stored_evaluation import parse_evaluation
from learnloop_service.app.errors import InvalidRequest, existing
from learnloop_service.training.replacing import CommonTexts, common_texts

_MOST_SESSIONS = 64
"""Number of sessions whose requests are compared."""
_MOST_CALLS = 3
"""Number of a session's calls among which the first one with tools counts. Some agents have a title written before."""


async def agent_texts(database: Database, caller: Caller, evaluation: str | None, run: str | None) -> CommonTexts:
    """Return what the first requests of an evaluation's or a run's sessions have in common. Raises NotFound,
    InvalidRequest."""
    if (evaluation is None) == (run is None):
        raise InvalidRequest(("query", "evaluation"), "Name an evaluation, or a run; not both.")
    kind, id = (EVALUATION, evaluation) if evaluation is not None else (RUN, str(run))
    await require(database, caller, kind, id)
    where = ("query", kind.called)
    common = await asyncio.to_thread(_common, await _calls(database, id, where))
    if common.requests < 2:
        raise InvalidRequest(
            where,
            f"It has first requests of {common.requests} tasks in sessions, and two different ones are needed to see "
            "what changes. Agents behind HTTP and those that claim tasks work in sessions.",
        )
    if common.prompt is None:
        why = "; ".join(f"{part}: {reason}" for part, reason in common.omitted.items())
        raise InvalidRequest(where, f"The requests have no text in common that a prompt can replace ({why}).")
    return common


async def _calls(database: Database, id: str, where: tuple[str, str]) -> Sequence[Any]:
    """Return session, packed request and time of the first calls, by session. Raises NotFound, InvalidRequest."""
    async with database() as tx:
        if where[1] == RUN.called:
            run = existing(await tx.get(Run, id), "run", id)
            unprompted = [AgentSession.run_id == id] if run.stored_request.prompt is None else []
        else:
            request = parse_evaluation(existing(await tx.get(EvaluationJob, id), "evaluation", id).request)
            unprompted = [
                (AgentSession.evaluation_id == id) & AgentSession.entry.startswith(f"{number}/")
                for number, model in enumerate(request.models)
                if model.prompt is None
            ]
        if not unprompted:
            raise InvalidRequest(where, f"All rollouts of {where[1]} {id} had a prompt: name one of the agent's own.")
        drawn = (
            select(AgentSession.id).where(or_(*unprompted)).order_by(func.md5(AgentSession.id)).limit(_MOST_SESSIONS)
        )
        query = (
            select(SessionCall.session_id, SessionCall.request, SessionCall.begun_at)
            .where(SessionCall.session_id.in_(drawn), SessionCall.number <= _MOST_CALLS)
            .order_by(SessionCall.session_id, SessionCall.number)
        )
        return (await tx.execute(query)).all()


def _common(calls: Sequence[Any]) -> CommonTexts:
    first: dict[str, KeptRequest] = {}
    for session, packed, _ in calls:
        request = unpack_request(packed)
        if session not in first or (request.tools and not first[session].tools):
            first[session] = request
    different = {json.dumps([request.messages, request.tools]): request for request in first.values()}
    requests = [(request.messages, request.tools) for request in different.values()]
    return common_texts(requests, {begun_at.date() for _, _, begun_at in calls})
