"""Prompts that people and programs propose: what they read, and how a proposal becomes a candidate."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import IN_PROGRESS, LIVE, CandidateState, Rung
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import Conflict, InvalidRequest, NotAllowed, TooManyRequests
from learnloop_service.app.improvements.champion import Champion, ImprovementTasks
from learnloop_service.app.improvements.guard import CopiesHeldOut
from learnloop_service.app.improvements.material import material, recorded_tools, rollout_texts
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore
from learnloop_service.app.operations.named import built_environment
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.stored_prompts import prompt_document, read_stored, save_prompt
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import InvalidPrompt

MAX_GUESSES = 500
"""Maximum number of candidates of an improvement, together with the proposals that were refused because they copy a
held-out task: both tell their proposers something about these tasks."""
_HELD_OUT = "held_out_refusals"


@dataclass(frozen=True, slots=True)
class Proposals:
    """Gives proposers their material, and takes their prompts."""

    service: HandlerResources
    store: ImprovementStore

    async def material(self, id: str) -> dict[str, Json]:
        """Return what proposers read. Raises NotFound, and Conflict before the pilot has ended."""
        record = await self.store.read(id)
        async with self._tasks(record) as tasks:
            return await self._material(record, tasks.champion)

    async def propose(self, id: str, actor: str, parts: Mapping[str, str], why: str) -> int:
        """Check a proposed prompt, store it and add it as a candidate. Returns its number.

        Raises NotFound, InvalidRequest with the part at fault, Conflict, NotAllowed and TooManyRequests.
        """
        record = await self.store.read(id)
        async with self._tasks(record) as tasks:
            rollouts = rollout_texts(await self._material(record, tasks.champion))
            _require_room(record)
            try:
                prompt = tasks.champion.proposed(parts)
                quotations = await asyncio.to_thread(tasks.quotations, prompt, rollouts)
            except InvalidPrompt as error:
                facts = record.improvement.facts
                if isinstance(error, CopiesHeldOut):
                    await self.store.change(record, facts={**facts, _HELD_OUT: facts.get(_HELD_OUT, 0) + 1})
                raise InvalidRequest(("body", "parts", *([error.part] if error.part else [])), error.why) from error
        sha256 = prompt_document(record.improvement.project, prompt).reference["sha256"]
        for tried in record.candidates:
            if tried.prompt and tried.prompt["sha256"] == sha256:
                raise Conflict(f"This prompt is that of candidate {tried.number} already, which is {tried.state}.")
        parent = record.champion.prompt or {"sha256": None}
        origin = {"author": actor, "improvement": id, "why": why, "parent": parent["sha256"]}
        name = parent.get("name") or record.improvement.request["environment"]["name"].replace(".", "-")[:63]
        stored = await save_prompt(self.service.database, record.improvement.project, prompt, str(name), origin)
        return await self.store.add(
            record,
            rung=Rung.PROMPT,
            author=actor,
            why=why,
            prompt=stored.model_dump(),
            model=record.champion.model,
            listed=record.champion.listed,
            only_by_person=bool(quotations),
        )

    async def _material(self, record: ImprovementRecord, champion: Champion) -> dict[str, Json]:
        pilot = record.improvement.pilot
        if pilot is None:
            raise Conflict("The pilot on training tasks has not ended yet. Its rollouts are the material: retry later.")
        goal = (
            "Change the texts of the prompt so that the agent solves more tasks. As it is, it solves "
            f"{pilot['success']:.0%} of its attempts at {pilot['tasks']} training tasks."
        )
        earlier = [await self._earlier(record, row) for row in record.candidates if row.rung == Rung.PROMPT]
        service = self.service
        return await material(service.database, service.settings, goal, champion, pilot["evaluation_id"], earlier)

    async def _earlier(self, record: ImprovementRecord, candidate: Candidate) -> dict[str, Json]:
        """Return a prompt that was proposed before, with what its proposers can know: nothing of held-out tasks."""
        prompt = await read_stored(self.service.database, record.improvement.project, candidate.prompt)
        training = (candidate.evidence or {}).get("training", {})
        is_decided = candidate.state not in (CandidateState.PROPOSED, *IN_PROGRESS)
        return {
            "number": candidate.number,
            "author": candidate.author,
            "why": candidate.why or None,
            "parts": {} if prompt is None else dict(prompt.parts),
            "training_tasks": training.get("tasks"),
            **{name: training.get(name) for name in ("won", "lost")},
            "accepted": candidate.state == CandidateState.ACCEPTED if is_decided else None,
            "reason": proposers_reason(candidate),
        }

    @asynccontextmanager
    async def _tasks(self, record: ImprovementRecord) -> AsyncIterator[ImprovementTasks]:
        """Build the environment, and yield what new prompts are checked against."""
        improvement, settings, database = record.improvement, self.service.settings, self.service.database
        request = ImprovementRequest.model_validate(improvement.request)
        prompt = await read_stored(database, improvement.project, record.champion.prompt)
        pilot = improvement.pilot
        tools = [] if pilot is None else await recorded_tools(database, pilot["evaluation_id"])
        choice, access = Choice(**improvement.request["environment"]), EnvironmentAccess(settings)
        with closing(
            await built_environment(database, settings.data_dir, choice, improvement.project, access)
        ) as environment:
            yield await asyncio.to_thread(ImprovementTasks.of, environment, request, prompt, tools)


def _require_room(record: ImprovementRecord) -> None:
    """Raise Conflict, NotAllowed or TooManyRequests if the improvement tries no further prompt."""
    improvement = record.improvement
    if improvement.status not in LIVE:
        raise NotAllowed(f"No prompt can be proposed: the improvement is {improvement.status}", ["continue"])
    if Rung.PROMPT not in improvement.request["rungs"]:
        raise Conflict("The improvement tries no prompts: its request leaves out the rung prompt.")
    if len(record.candidates) + improvement.facts.get(_HELD_OUT, 0) >= MAX_GUESSES:
        raise TooManyRequests(f"The improvement has had {MAX_GUESSES} candidates and guesses, which is the maximum.")
    trained = [row for row in record.candidates if row.rung in (Rung.IMITATION, Rung.GRPO)]
    if any(row.state != CandidateState.SKIPPED for row in trained):
        raise Conflict("Training has begun, and weights are trained with the prompt of their champion.")


def proposers_reason(candidate: Candidate) -> str | None:
    """Return why a candidate was not accepted, without anything of held-out tasks but that."""
    if candidate.state == CandidateState.REFUSED and candidate.gate_id is not None:
        return "not shown to be better on validation tasks"
    return candidate.reason
