"""Whether agents bring the prompt that their model is served with, said in a header of each reply."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import func, or_, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.instruments import PROMPT_REQUESTS
from learnloop_service.app.model_registry.resolver import ResolvedModel
from learnloop_service.app.runs.documents import UnknownDocument
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import Prompt, is_in
from learnloop_service.training.protocol.model_name import ModelName

PROMPT_HEADER = "Learnloop-Prompt"
"""Header of replies of a model with a prompt: the beginning of its hash, and what became of it."""
Delivery = Literal["applied", "not-found", "not-used"]
"""`applied`: the request has the prompt's parts. `not-found`: what they replace was not found. `not-used`: neither."""
_MOST_KNOWN = 1_000
_NOTE_EVERY = timedelta(minutes=1)


class ServedPrompts:
    """Looks for the prompts of models in the requests to them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, Prompt] = OrderedDict()
        """Stored prompts by hash."""
        self._noted: dict[tuple[str, str], float] = {}
        """When a name's prompt was last noted as missing, by this process's clock."""

    async def delivery(
        self, reference: PromptReference | None, body: Mapping[str, Json], promoted_as: str | None
    ) -> Delivery | None:
        """Return what became of the prompt in a request's body, count it, and note on the promoted name that it is
        missing. None without a prompt."""
        prompt = None if reference is None else await self._read(reference)
        if prompt is None or reference is None:
            return None
        delivery: Delivery = "applied" if is_in(prompt, _messages(body), _list(body.get("tools"))) else "not-used"
        PROMPT_REQUESTS.labels(delivery).inc()
        if delivery != "applied" and promoted_as is not None:
            await self._note(promoted_as, reference)
        return delivery

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

    async def header(self, model: ResolvedModel, body: Mapping[str, Json]) -> Mapping[str, str]:
        """Return the header of the reply to a request outside of sessions; empty if the model has no prompt."""
        delivery = await self.delivery(prompt := model.prompt, body, model.promoted_as)
        return {} if prompt is None or delivery is None else prompt_header(prompt, delivery)


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
