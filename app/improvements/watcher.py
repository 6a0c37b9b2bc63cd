"""Makes the moves of improvements. Every service looks, so nothing waits for a particular process.

A look settles the job that has ended, or computes the next move from the rows (app/improvements/policy.py) and commits
it in the transaction that creates the job, if the improvement was not changed since it was read. A process that dies
before the commit has done nothing; after it, everything. So there is no lease, and nothing is remembered.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import DATABASE_DOWN, ServiceError, Unavailable
from learnloop_service.app.improvements import policy
from learnloop_service.app.improvements.budget import remaining
from learnloop_service.app.improvements.demonstrations import demonstrations_of
from learnloop_service.app.improvements.jobs import ImprovementJobs, Save
from learnloop_service.app.improvements.prices import trainable
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.situation import situation_of
from learnloop_service.app.improvements.store import (
    ImprovementRecord,
    ImprovementStore,
    Taken,
    change,
    change_candidate,
)
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.evaluation import EvaluationStarter
from learnloop_service.app.runs.documents import resolve_references
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.service import HandlerResources
from learnloop_service.app.settings import Settings
from learnloop_service.training.environment_check.check import check
from learnloop_service.training.environment_check.report import FindingState

EVERY_S = 1.0
_CHECKED_TASKS = 24
"""Training tasks that the environment is checked on before any rollout."""
_MOST_MOVES = 20
"""Moves of an improvement in one look, so that others get their turn."""
_REFUSED = (ServiceError, ValueError)
"""Errors that a repetition would raise again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ImprovementWatcher:
    """Makes the moves of improvements."""

    service: HandlerResources
    jobs: ImprovementJobs
    failed: RepeatedLog = field(default_factory=lambda: RepeatedLog(log))

    @property
    def store(self) -> ImprovementStore:
        """The improvements."""
        return ImprovementStore(self.service.database)

    async def look(self) -> None:
        """Make the moves that are due. An error at one improvement does not keep the others waiting."""
        for id in await self.store.due():
            try:
                for _ in range(_MOST_MOVES):
                    if not await self._step(await self.store.read(id)):
                        break
            except Taken:
                log.debug("another process was faster", improvement_id=id)
            except Unavailable as error:
                log.warning("improvement has to wait", improvement_id=id, error=str(error))
            except DATABASE_DOWN:
                raise
            except Exception as error:
                self.failed.error("improvement failed to move", improvement_id=id, exc_info=error)

    async def _step(self, record: ImprovementRecord) -> bool:
        """Settle the job or make the next move. Returns whether there can be another one right away."""
        if record.improvement.job_id is not None:
            return await Settling(self.service, self.store).settle(record)
        if record.improvement.facts["oracle"] and "broken" not in record.improvement.facts:
            return await self._check(record)
        limits = await remaining(self.store, record)
        move = policy.next_move(await situation_of(self.service, record, limits))
        try:
            return await self._make(record, move, limits)
        except (Taken, Unavailable, *DATABASE_DOWN):
            raise
        except _REFUSED as error:
            return await self._refused(record, move, str(error))

    async def _check(self, record: ImprovementRecord) -> bool:
        """Check the environment by agents without a model, and save what is broken. Where it has no oracle, the check
        would say little."""
        improvement, settings = record.improvement, self.service.settings
        choice = Choice(**improvement.request["environment"])
        whole = await resolve_references(self.service.database, settings.data_dir, choice, improvement.project)
        try:
            broken = await asyncio.to_thread(_broken, whole, settings, improvement.request["seed"])
        except ValueError as error:
            broken = [f"it cannot be checked: {error}"]
        await self.store.change(record, facts={**improvement.facts, "broken": broken})
        return True

    async def _make(self, record: ImprovementRecord, move: policy.Move, limits: Mapping[str, float | None]) -> bool:
        match move:
            case policy.Measure():
                await self.jobs.measure(record, self._saved(record, "0", state=CandidateState.MEASURING), limits)
            case policy.Pilot():
                await self.jobs.pilot(record, self._saved(record, "pilot"), limits)
            case policy.Screen(number, tasks):
                save = self._saved(record, str(number), state=CandidateState.SCREENING)
                await self.jobs.screen(record, record.candidates[number], tasks, save, limits)
            case policy.Compare(number, error):
                save = self._saved(record, str(number), state=CandidateState.MEASURING, error_share=error)
                await self.jobs.compare(record, record.candidates[number], error, save, limits)
            case policy.Train(number, error):
                await self._train(record, record.candidates[number], error, limits)
            case policy.Add(rung, index):
                await self._add(record, rung, index)
            case policy.Skip(rung, reason, number):
                await self._skip(record, rung, reason, number)
            case policy.WaitForPrompts():
                return await self._wait(record)
            case policy.Test():
                await self.jobs.test(record, self._saved(record, "final"), limits)
            case policy.End(status):
                await self._end(record, status)
        return isinstance(move, policy.Add | policy.Skip)

    def _saved(self, record: ImprovementRecord, purpose: str, **values: Any) -> Save:
        """Return what saves a job and the state of its candidate, in the transaction that creates the job."""
        kind = "run" if values.get("state") == CandidateState.TRAINING else "evaluation"

        async def save(tx: AsyncSession, job_id: str) -> None:
            await change(tx, record.improvement, job_kind=kind, job_id=job_id, job_for=purpose, reason=None)
            if purpose.isdecimal():
                column = {CandidateState.SCREENING: "screening_id", CandidateState.TRAINING: "run_id"}
                job = {column.get(values["state"], "gate_id"): job_id}
                await change_candidate(tx, record.candidates[int(purpose)], **values, **job)

        return save

    async def _train(
        self, record: ImprovementRecord, candidate: Candidate, error: float, limits: Mapping[str, float | None]
    ) -> None:
        save = self._saved(record, str(candidate.number), state=CandidateState.TRAINING, error_share=error)
        demonstrations = None
        if candidate.rung == Rung.IMITATION:
            demonstrations = await demonstrations_of(self.service, record)
        await self.jobs.train(record, candidate, save, limits, demonstrations)

    async def _add(self, record: ImprovementRecord, rung: Rung, index: int) -> None:
        """Add a candidate with the champion's prompt: a listed model, or a model to train from the newest accepted
        candidate that can be trained."""
        listed = rung is Rung.MODEL
        model = record.improvement.request["models"][index] if listed else trainable(record).model
        await self._new(record, rung, CandidateState.PROPOSED, None, model=model, listed=listed)

    async def _skip(self, record: ImprovementRecord, rung: Rung, reason: str, number: int | None) -> None:
        if number is None:
            await self._new(record, rung, CandidateState.SKIPPED, reason, model=record.champion.model)
            return
        async with self.service.database.begin() as tx:
            await change(tx, record.improvement)
            values = {"state": CandidateState.SKIPPED, "reason": reason, "decided_at": func.now()}
            await change_candidate(tx, record.candidates[number], **values)

    async def _new(
        self,
        record: ImprovementRecord,
        rung: Rung,
        state: CandidateState,
        reason: str | None,
        *,
        model: str,
        listed: bool = False,
    ) -> None:
        async with self.service.database.begin() as tx:
            await change(tx, record.improvement)
            tx.add(
                Candidate(
                    improvement_id=record.improvement.id,
                    number=len(record.candidates),
                    rung=rung,
                    state=state,
                    reason=reason,
                    author=record.improvement.actor,
                    prompt=record.champion.prompt,
                    model=model,
                    listed=listed,
                )
            )

    async def _wait(self, record: ImprovementRecord) -> bool:
        """Begin to wait for prompts, if that has not begun. Returns whether the time is over already."""
        if record.improvement.waits_until is None:
            minutes = record.improvement.request["wait_minutes"]
            command = f"learnloop improve material {record.improvement.id} --out material"
            await self.store.change(
                record, waits_until=func.now() + timedelta(minutes=minutes), reason=f"Waits for prompts: {command}"
            )
        return False

    async def _end(self, record: ImprovementRecord, status: ImprovementStatus) -> None:
        await self.store.change(record, status=status, finished_at=func.now(), reason=None)
        log.info("improvement ended", improvement_id=record.improvement.id, status=status)

    async def _refused(self, record: ImprovementRecord, move: policy.Move, error: str) -> bool:
        """Save that a job was refused: the candidate has failed, or without one the improvement."""
        log.warning("job of an improvement refused", improvement_id=record.improvement.id, error=error)
        if isinstance(move, policy.Screen | policy.Compare | policy.Train):
            async with self.service.database.begin() as tx:
                await change(tx, record.improvement)
                values = {"state": CandidateState.FAILED, "reason": error, "decided_at": func.now()}
                await change_candidate(tx, record.candidates[move.number], **values)
            return True
        await self.store.change(record, status=ImprovementStatus.FAILED, finished_at=func.now(), reason=error)
        return False


def _broken(environment: Choice, settings: Settings, seed: int) -> list[str]:
    """Return what the check of an environment says is broken."""
    access, tasks = EnvironmentAccess(settings), {"scenarios": _CHECKED_TASKS, "seed": seed}
    examined = check(environment.name, environment.config, settings.data_dir, access=access, **tasks)
    return [finding.said for finding in asyncio.run(examined).findings if finding.state is FindingState.FAILED]


def watcher_of(service: HandlerResources) -> ImprovementWatcher:
    """Return the watcher of a service."""
    models = ModelResolver(service.database, service.engine, service.connect, base_models(service.settings))
    return ImprovementWatcher(
        service, ImprovementJobs(service, EvaluationStarter(service, service.store, models, service.runner.wake))
    )


@asynccontextmanager
async def improving(watcher: ImprovementWatcher) -> AsyncIterator[None]:
    """Make the moves of improvements while this is open."""
    async with every(EVERY_S, watcher.look, "improvements"):
        yield
