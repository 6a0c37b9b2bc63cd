"""What people do with an improvement: pause, resume, cancel, continue."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import (
    CONTINUABLE,
    IN_PROGRESS,
    LIVE,
    CandidateState,
    ImprovementStatus,
)
from learnloop_service.app.errors import NotAllowed
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.improvements.forecast import remaining
from learnloop_service.app.improvements.store import (
    NO_JOB,
    ImprovementRecord,
    ImprovementStore,
    change,
    change_candidate,
)
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json


@dataclass(frozen=True, slots=True)
class Actions:
    """Acts on improvements. Methods raise NotFound, and NotAllowed or Conflict if the state does not permit it."""

    service: HandlerResources
    store: ImprovementStore

    async def pause(self, id: str, actor: str) -> None:
        """Start nothing more. A run is paused; an evaluation continues to its end."""
        record = await self._in(id, {ImprovementStatus.RUNNING}, "pause")
        await self.store.change(record, status=ImprovementStatus.PAUSED, reason=f"paused by {actor}")
        if record.improvement.job_kind == "run":
            await self._job(record, "pause", actor)

    async def resume(self, id: str, actor: str) -> None:
        """Go on with a paused improvement, or with one that waits for prompts, without waiting any longer."""
        record = await self._in(id, {ImprovementStatus.RUNNING, ImprovementStatus.PAUSED}, "resume")
        paused = record.improvement.status == ImprovementStatus.PAUSED
        if not paused and record.improvement.waits_until is None:
            raise NotAllowed("Cannot resume a running improvement", _allowed(record))
        waits = {} if paused else {"waits_until": func.now()}
        await self.store.change(record, status=ImprovementStatus.RUNNING, reason=None, **waits)
        if paused:
            await self._job(record, "resume", actor)

    async def cancel(self, id: str, actor: str) -> None:
        """End the improvement. Its evaluation or run is cancelled, and its candidate is tried anew by `continue`: as
        another candidate if its comparison had begun, because a second comparison takes a share of the error, too."""
        record = await self._in(id, LIVE, "cancel")
        ended = {"status": ImprovementStatus.CANCELLED, "finished_at": func.now(), "reason": f"cancelled by {actor}"}
        async with self.service.database.begin() as tx:
            await change(tx, record.improvement, **ended, **NO_JOB)
            for row in record.candidates:
                if row.state not in IN_PROGRESS:
                    continue
                compared = {"reason": ended["reason"], "decided_at": func.now()} if row.error_share else {}
                state = CandidateState.SKIPPED if compared else CandidateState.PROPOSED
                await change_candidate(tx, row, state=state, **compared)
                if compared:
                    tx.add(_again(row, len(record.candidates)))
        await self._job(record, "cancel", actor)

    async def resume_ended(self, id: str, actor: str, changes: Mapping[str, Json]) -> None:
        """Go on with an improvement that has ended, with another target or budget."""
        record = await self._in(id, CONTINUABLE, "continue")
        request = {**record.improvement.request, **changes}
        values = {"status": ImprovementStatus.RUNNING, "reason": None, "finished_at": None, "request": request}
        await self.store.change(record, **values)
        if record.improvement.job_id is not None:  # it is paused at its limit
            await self._job(record, "resume", actor, await remaining(self.store, await self.store.read(id)))

    async def _in(self, id: str, states: Container[str], verb: str) -> ImprovementRecord:
        record = await self.store.read(id)
        if record.improvement.status not in states:
            raise NotAllowed(f"Cannot {verb} an improvement that is {record.improvement.status}", _allowed(record))
        return record

    async def _job(
        self, record: ImprovementRecord, verb: str, actor: str, limits: Mapping[str, float] | None = None
    ) -> None:
        """Pause, resume or cancel the evaluation or run in progress. One that has ended meanwhile is left alone."""
        improvement = record.improvement
        if improvement.job_id is None:
            return
        budget = {"budget": dict(limits)} if limits else {}
        jobs: Any = self.service.store if improvement.job_kind == "run" else EvaluationStore(self.service.database)
        try:
            await getattr(jobs, verb)(improvement.job_id, actor, **budget)
        except NotAllowed:
            return
        self.service.runner.nudge(improvement.job_id)


def _again(candidate: Candidate, number: int) -> Candidate:
    """Return a candidate to be tried from the beginning, which has passed the screening that the other one passed."""
    same = ("improvement_id", "rung", "author", "why", "prompt", "model", "listed", "only_by_person", "screening_id")
    columns = {name: getattr(candidate, name) for name in (*same, "evidence")}
    return Candidate(**columns, number=number, state=CandidateState.PROPOSED)


def _allowed(record: ImprovementRecord) -> list[str]:
    match record.improvement.status:
        case ImprovementStatus.RUNNING:
            return ["pause", "cancel", *(["resume"] if record.improvement.waits_until else [])]
        case ImprovementStatus.PAUSED:
            return ["resume", "cancel"]
        case ImprovementStatus.FAILED:
            return ["delete"]
        case _:
            return ["continue", "delete"]
