"""Finds the texts that an agent itself brings to its model, in the requests of its sessions."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import distinct_on

from learnloop_service.app.agent_sessions.records import unpack_request
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import EVALUATION, RUN, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, EvaluationJob, Run, SessionCall
from learnloop_service.app.domain.stored_evaluation import parse_evaluation
from learnloop_service.app.errors import InvalidRequest, existing
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.replacing import CommonTexts, common_texts

_MOST_REQUESTS = 50
"""Number of different requests that are compared."""


@dataclass(frozen=True, slots=True)
class AgentTexts:
    """The texts of an agent, as a prompt that replaces them by themselves."""

    prompt: Prompt
    requests: int
    omitted: Mapping[str, str]
    """Why a part is not in the prompt, by its name."""


async def agent_texts(database: Database, caller: Caller, evaluation: str | None, run: str | None) -> AgentTexts:
    """Return what the first requests of an evaluation's or a run's sessions have in common. Raises NotFound,
    InvalidRequest."""
    if (evaluation is None) == (run is None):
        raise InvalidRequest(("query", "evaluation"), "Name an evaluation, or a run; not both.")
    kind, id = (EVALUATION, evaluation) if evaluation is not None else (RUN, str(run))
    await require(database, caller, kind, id)
    where = ("query", kind.called)
    calls = await _first_calls(database, id, where)
    if len(calls) < 2:
        raise InvalidRequest(
            where,
            f"It has first requests of {len(calls)} tasks in sessions, and two different ones are needed to see what "
            "changes. Agents behind HTTP and those that claim tasks work in sessions.",
        )
    common = await asyncio.to_thread(_common, calls)
    if common.prompt is None:
        why = "; ".join(f"{part}: {reason}" for part, reason in common.omitted.items())
        raise InvalidRequest(where, f"The requests have no text in common that a prompt can replace ({why}).")
    return AgentTexts(common.prompt, len(calls), common.omitted)


async def _first_calls(database: Database, id: str, where: tuple[str, str]) -> Sequence[Any]:
    """Return different first requests, packed, with the time of each. Raises NotFound, InvalidRequest."""
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
        query = (
            select(SessionCall.request, SessionCall.begun_at)
            .ext(distinct_on(SessionCall.digest))
            .join(AgentSession, AgentSession.id == SessionCall.session_id)
            .where(or_(*unprompted), SessionCall.number == 1)
            .order_by(SessionCall.digest)
            .limit(_MOST_REQUESTS)
        )
        return (await tx.execute(query)).all()


def _common(calls: Sequence[Any]) -> CommonTexts:
    requests = [unpack_request(request) for request, _ in calls]
    messages = [(request.messages, request.tools) for request in requests]
    return common_texts(messages, {begun_at.date() for _, begun_at in calls})
