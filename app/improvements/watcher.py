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
from sqlalchemy import func, select

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.datasets.documents import resolve_references
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import DATABASE_DOWN, ServiceError, Unavailable
from learnloop_service.app.improvements import policy
from learnloop_service.app.improvements.budget import remaining
from learnloop_service.app.improvements.jobs import ImprovementJobs
from learnloop_service.app.improvements.prices import forecasts, too_dear, trainable
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore, Taken
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.evaluation import EvaluationStarter
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
        outlook = policy.Outlook(
            proposals_open=await self._is_open(record),
            too_dear=too_dear(record, limits, await forecasts(self.service, record)) if limits else {},
            is_used_up=any(limit is not None and limit <= 0 for limit in limits.values()),
        )
        move = policy.next_move(record, outlook)
        try:
            return await self._make(record, move, limits)
        except (Taken, Unavailable, *DATABASE_DOWN):
            raise
        except _REFUSED as error:
            return await self._refused(record, move, str(error))

    async def _is_open(self, record: ImprovementRecord) -> bool:
        """Whether there is time left for prompts to be proposed."""
        improvement = record.improvement
        if improvement.waits_until is None:
            return bool(improvement.request["wait_minutes"])
        async with self.service.database() as tx:
            return bool((await tx.execute(select(func.now() < improvement.waits_until))).scalar_one())

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

    async def _make(self, record: ImprovementRecord, move: policy.NextMove, limits: Mapping[str, float | None]) -> bool:
        match move.kind:
            case "add" if move.rung is Rung.MODEL:
                tried = sum(row.rung == Rung.MODEL for row in record.candidates)
                await self._add(record, move, record.improvement.request["models"][tried], listed=True)
            case "add":
                await self._add(record, move, trainable(record).model)
            case "skip" if move.number is None:
                await self._add(record, move, record.champion.model, state=CandidateState.SKIPPED)
            case "skip":
                candidate = record.candidates[move.number or 0]
                await self.store.decide(record, candidate, CandidateState.SKIPPED, reason=move.reason)
            case "wait":
                await self._wait(record)
            case "end":
                await self.store.change(record, status=move.status, finished_at=func.now(), reason=None)
                log.info("improvement ended", improvement_id=record.improvement.id, status=move.status)
            case _:
                await self.jobs.start(record, move, limits)
        return move.kind in ("add", "skip")

    async def _add(self, record: ImprovementRecord, move: policy.NextMove, model: str, **values: Any) -> None:
        """Add a candidate with the champion's prompt."""
        author, prompt, reason = record.improvement.actor, record.champion.prompt, move.reason or None
        await self.store.add(record, rung=move.rung, author=author, prompt=prompt, reason=reason, model=model, **values)

    async def _wait(self, record: ImprovementRecord) -> None:
        """Begin to wait for prompts, if that has not begun."""
        if record.improvement.waits_until is None:
            minutes = record.improvement.request["wait_minutes"]
            command = f"learnloop improve material {record.improvement.id} --out material"
            await self.store.change(
                record, waits_until=func.now() + timedelta(minutes=minutes), reason=f"Waits for prompts: {command}"
            )

    async def _refused(self, record: ImprovementRecord, move: policy.NextMove, error: str) -> bool:
        """Save that a job was refused: the candidate has failed, or without one the improvement."""
        log.warning("job of an improvement refused", improvement_id=record.improvement.id, error=error)
        if move.number:
            await self.store.decide(record, record.candidates[move.number], CandidateState.FAILED, reason=error)
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
