"""Whether agents bring the prompt that their model is served with, said in a header of each reply."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import func, or_, update

from learnloop_service.app.datasets.documents import UnknownDocument
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, EvaluationJob, Promotion, Run
from learnloop_service.app.domain.stored_evaluation import Slot, parse_evaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.instruments import PROMPT_REQUESTS
from learnloop_service.app.model_registry.resolver import ResolvedModel
from learnloop_service.app.runs.configuration import is_replaced
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import Prompt, is_in
from learnloop_service.training.protocol.chat_reader import read_messages
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.replacing import replaced

PROMPT_HEADER = "Learnloop-Prompt"
"""Header of replies of a model with a prompt: the beginning of its hash, and what became of it."""
Delivery = Literal["applied", "not-found", "not-used"]
"""`applied`: the request has the prompt's parts. `not-found`: what they replace was not found. `not-used`: neither."""
_MOST_KNOWN = 1_000
_NOTE_EVERY = timedelta(minutes=1)


class ServedPrompts:
    """Looks for the prompts of models in the requests to them, and puts them there if agents cannot."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, Prompt] = OrderedDict()
        """Stored prompts by hash."""
        self._noted: dict[tuple[str, str], float] = {}
        """When a name's prompt was last noted as missing, by this process's clock."""

    async def delivery(
        self,
        reference: PromptReference | None,
        body: Mapping[str, Json],
        promoted_as: str | None,
        missing: Sequence[str] | None = None,
    ) -> Delivery | None:
        """Return what became of the prompt in a request's body, count it, and note on the promoted name that it is
        missing. `missing` are the parts whose texts were not there to be replaced; None if nothing was to be. None
        without a prompt."""
        prompt = None if reference is None else await self._read(reference)
        if prompt is None or reference is None:
            return None
        if missing is not None:
            delivery: Delivery = "not-found" if missing else "applied"
        else:
            delivery = "applied" if is_in(prompt, _messages(body), _list(body.get("tools"))) else "not-used"
        PROMPT_REQUESTS.labels(delivery).inc()
        if delivery != "applied" and promoted_as is not None:
            await self._note(promoted_as, reference)
        return delivery

    async def put_in(self, model: ResolvedModel, body: dict[str, Json]) -> tuple[dict[str, Json], Mapping[str, str]]:
        """Return the body of a chat completion for a model outside of sessions, with its prompt in place of the texts
        that this replaces, and the header of the reply; without a prompt there is none."""
        prompt = None if model.prompt is None else await self._read(model.prompt)
        messages, tools, missing = body.get("messages"), _list(body.get("tools")), None
        if prompt is not None and prompt.replaces and isinstance(messages, list):
            with suppress(ValueError):  # what is wrong with the messages is said by whoever reads them next
                read, described, missing = replaced(read_messages(messages), tools, prompt)
                body = {**body, "messages": [*read], **({"tools": [*described]} if tools else {})}
        delivery = await self.delivery(model.prompt, body, model.promoted_as, missing)
        return body, {} if model.prompt is None or delivery is None else prompt_header(model.prompt, delivery)

    async def put_in_response(
        self, model: ResolvedModel, body: dict[str, Json]
    ) -> tuple[dict[str, Json], Mapping[str, str]]:
        """Do the same with the body of a request of the Responses API, whose instructions are the system message."""
        instructions, tools = body.get("instructions"), _list(body.get("tools"))
        messages = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        described = [{"type": "function", "function": tool} for tool in tools]
        chat, header = await self.put_in(model, {"messages": messages or _messages(body), "tools": described})
        if not messages or (chat["messages"][0]["content"] == instructions and chat["tools"] == described):
            return body, header
        changed_tools = {"tools": [tool["function"] for tool in chat["tools"]]} if tools else {}
        return {**body, "instructions": chat["messages"][0]["content"], **changed_tools}, header

    async def replacing(self, session: AgentSession) -> Prompt | None:
        """Return the prompt whose texts replace those of the session's requests, if there is one. It follows from rows
        that never change."""
        reference = await self._replacing(session)
        prompt = None if reference is None else await self._read(reference)
        return prompt if prompt is not None and prompt.replaces else None

    async def _replacing(self, session: AgentSession) -> PromptReference | None:
        """Return the prompt whose texts may replace others: that of the session's rollout, if its environment says so;
        without a rollout, that of the promoted name."""
        if session.run_id is None and session.evaluation_id is None:
            return session.prompt
        async with self._database() as tx:
            run = None if session.run_id is None else await tx.get(Run, session.run_id)
            job = None if session.evaluation_id is None else await tx.get(EvaluationJob, session.evaluation_id)
        if run is not None:
            return run.stored_request.prompt if is_replaced(run.stored_request.environment) else None
        if job is None or not is_replaced((stored := parse_evaluation(job.request)).environment):
            return None
        return stored.models[Slot.parse(str(session.entry)).model].prompt

    async def _read(self, reference: PromptReference) -> Prompt | None:
        if (known := self._known.get(reference.sha256)) is not None:
            return known
        with suppress(UnknownDocument):  # it was deleted with its run
            if (prompt := await read_stored(self._database, None, reference)) is not None:
                self._known[reference.sha256] = prompt
                if len(self._known) > _MOST_KNOWN:
                    self._known.popitem(last=False)
                return prompt
        return None

    async def _note(self, promoted_as: str, reference: PromptReference) -> None:
        now, which = time.monotonic(), (promoted_as, reference.sha256)
        if now - self._noted.get(which, -_NOTE_EVERY.total_seconds()) < _NOTE_EVERY.total_seconds():
            return
        self._noted[which] = now
        name, missed_at = ModelName.parse(promoted_as), Promotion.prompt_missed_at
        named = (Promotion.project == name.project, Promotion.name == name.name, Promotion.withdrawn_at.is_(None))
        is_due = or_(missed_at.is_(None), missed_at < func.clock_timestamp() - _NOTE_EVERY)
        noting = update(Promotion).where(*named, Promotion.prompt_sha256 == reference.sha256, is_due)
        async with self._database.begin() as tx:
            await tx.execute(noting.values(prompt_missed_at=func.clock_timestamp()))


def prompt_header(reference: PromptReference, delivery: Delivery) -> Mapping[str, str]:
    """Return the header that says what became of the prompt."""
    return {PROMPT_HEADER: f"{reference.sha256[:12]}; {delivery}"}


def _messages(body: Mapping[str, Json]) -> list[Any]:
    """Return the messages of a body, also of one of the Responses API."""
    content = body.get("input", body.get("messages"))
    items = [item for item in _list(content) if isinstance(item, dict)]
    return [{"content": body.get("instructions")}, {"content": content if isinstance(content, str) else None}, *items]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
