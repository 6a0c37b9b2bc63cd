"""The prompts that are put into the requests of agents whose code cannot be changed."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, EvaluationJob, Run
from learnloop_service.app.domain.stored_evaluation import Slot, parse_evaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.runs.configuration import is_replaced
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.training.prompt import Prompt

_MOST_KNOWN = 100


@dataclass(frozen=True, slots=True)
class SessionPrompts:
    """Finds the prompt of a session. What it is follows from rows that never change."""

    database: Database
    _known: MutableMapping[str, Prompt] = field(default_factory=dict)

    async def of(self, session: AgentSession) -> Prompt | None:
        """Return the prompt whose texts replace those of the session's requests, if there is one. Raises
        UnknownDocument."""
        reference = await self._reference(session)
        if reference is None:
            return None
        if (prompt := self._known.get(reference.sha256)) is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            prompt = await read_stored(self.database, session.project, reference)
            assert prompt is not None  # there is a reference
            self._known[reference.sha256] = prompt
        return prompt if prompt.replaces else None

    async def _reference(self, session: AgentSession) -> PromptReference | None:
        """Return the prompt whose texts may replace others: that of the session's rollout, if its environment says so;
        without a rollout, that of the promoted name."""
        if session.run_id is None and session.evaluation_id is None:
            return session.prompt
        async with self.database() as tx:
            run = None if session.run_id is None else await tx.get(Run, session.run_id)
            job = None if session.evaluation_id is None else await tx.get(EvaluationJob, session.evaluation_id)
        if run is not None:
            return run.stored_request.prompt if is_replaced(run.stored_request.environment) else None
        if job is None or not is_replaced((stored := parse_evaluation(job.request)).environment):
            return None
        return stored.models[Slot.parse(str(session.entry)).model].prompt
