"""Prompts that people and programs propose: what they read, and how a proposal becomes a candidate."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.domain.stored_request import Choice, PromptReference
from learnloop_service.app.errors import Conflict, InvalidRequest
from learnloop_service.app.improvements.actions import Actions
from learnloop_service.app.improvements.champion import Champion
from learnloop_service.app.improvements.material import EarlierCandidate, material, recorded_tools, rollout_texts
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore
from learnloop_service.app.improvements.tasks import ImprovementTasks
from learnloop_service.app.operations.named import built_environment
from learnloop_service.app.runs.documents import save_version
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.stored_prompts import prompt_document, read_stored
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import InvalidPrompt

_PARTS = ("body", "parts")
_DECIDED = frozenset(CandidateState) - {
    CandidateState.PROPOSED,
    CandidateState.SCREENING,
    CandidateState.MEASURING,
    CandidateState.TRAINING,
}


@dataclass(frozen=True, slots=True)
class Proposals:
    """Gives proposers their material, and takes their prompts."""

    service: HandlerResources

    async def material(self, id: str) -> dict[str, Json]:
        """Return what proposers read. Raises NotFound, and Conflict before the pilot has ended."""
        record = await ImprovementStore(self.service.database).read(id)
        async with self._tasks(record) as tasks:
            return await self._material(record, tasks.champion)

    async def propose(self, id: str, actor: str, parts: Mapping[str, str], why: str) -> int:
        """Check a proposed prompt, store it and add it as a candidate. Returns its number.

        Raises NotFound, InvalidRequest with the part at fault, Conflict and NotAllowed; then nothing is counted.
        """
        store = ImprovementStore(self.service.database)
        record, actions = await store.read(id), Actions(self.service, store)
        async with self._tasks(record) as tasks:
            rollouts = rollout_texts(await self._material(record, tasks.champion))
            try:
                prompt = tasks.champion.proposed(parts)
            except InvalidPrompt as error:
                raise InvalidRequest((*_PARTS, *([error.part] if error.part else [])), error.why) from error
            quotations = await asyncio.to_thread(replace(tasks, rollouts=rollouts).checked, prompt, _PARTS)
        new = prompt_document(record.improvement.project, prompt)
        actions.require_room(record, str(new.reference["sha256"]))
        parent = None if record.champion.prompt is None else record.champion.prompt["sha256"]
        origin = {"author": actor, "improvement": id, "why": why, "parent": parent}
        row = await save_version(self.service.database, new, "prompt", _name(record), origin)
        reference = PromptReference(sha256=row.sha256, name=row.name, version=row.version)
        return await actions.propose(record, actor, reference.model_dump(), why, quotes=bool(quotations))

    async def _material(self, record: ImprovementRecord, champion: Champion) -> dict[str, Json]:
        pilot = record.improvement.pilot
        if pilot is None:
            raise Conflict("The pilot on training tasks has not ended yet. Its rollouts are the material: retry later.")
        goal = (
            "Change the texts of the prompt so that the agent solves more tasks. As it is, it solves "
            f"{pilot['success']:.0%} of its attempts at {pilot['tasks']} training tasks."
        )
        return await material(
            self.service.database,
            self.service.settings,
            goal=goal,
            champion=champion,
            evaluation_id=pilot["evaluation_id"],
            earlier=[await self._earlier(record, row) for row in record.candidates if row.rung == Rung.PROMPT],
        )

    async def _earlier(self, record: ImprovementRecord, candidate: Candidate) -> EarlierCandidate:
        reference = None if candidate.prompt is None else PromptReference.model_validate(candidate.prompt)
        prompt = await read_stored(self.service.database, record.improvement.project, reference)
        training = (candidate.evidence or {}).get("training", {})
        return EarlierCandidate(
            number=candidate.number,
            author=candidate.author,
            why=candidate.why or None,
            parts={} if prompt is None else prompt.parts,
            training_tasks=training.get("tasks"),
            won=training.get("won"),
            lost=training.get("lost"),
            accepted=candidate.state == CandidateState.ACCEPTED if candidate.state in _DECIDED else None,
            reason=proposers_reason(candidate),
        )

    @asynccontextmanager
    async def _tasks(self, record: ImprovementRecord) -> AsyncIterator[ImprovementTasks]:
        """Build the environment, and yield what new prompts are checked against."""
        improvement, reference = record.improvement, record.champion.prompt
        request = ImprovementRequest.model_validate(improvement.request)
        settings, database = self.service.settings, self.service.database
        prompt = await read_stored(
            database, improvement.project, None if reference is None else PromptReference.model_validate(reference)
        )
        pilot = improvement.pilot
        tools = [] if pilot is None else await recorded_tools(database, pilot["evaluation_id"])
        choice = Choice(name=request.environment.name, config=request.environment.config)
        access = EnvironmentAccess(settings)
        built = await built_environment(database, settings.data_dir, choice, improvement.project, access)
        with closing(built) as environment:
            counts = improvement.request["validation"], improvement.request["test"]
            yield await asyncio.to_thread(ImprovementTasks.of, environment, request, *counts, prompt, tools)


def proposers_reason(candidate: Candidate) -> str | None:
    """Return why a candidate was not accepted, without anything of held-out tasks but that."""
    if candidate.state == CandidateState.REFUSED and candidate.gate_id is not None:
        return "not shown to be better on validation tasks"
    return candidate.reason


def _name(record: ImprovementRecord) -> str:
    """Return the name of proposed prompts: the champion's, or else the environment's."""
    named = record.champion.prompt and record.champion.prompt.get("name")
    return str(named or record.improvement.request["environment"]["name"].replace(".", "-")[:63])
