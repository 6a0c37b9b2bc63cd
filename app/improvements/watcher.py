"""Makes the moves of improvements. Every service looks, so nothing waits for a particular process.

A look settles the job that has ended, or computes the next move from the rows (app/improvements/policy.py) and commits
it in the transaction that creates the job, if the improvement was not changed since it was read. A process that dies
before the commit has done nothing; after it, everything. So there is no lease, and nothing is remembered.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.datasets.documents import resolve_references
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.stored_request import Choice, PromptReference
from learnloop_service.app.errors import DATABASE_DOWN, Conflict, ServiceError, Unavailable
from learnloop_service.app.improvements import policy
from learnloop_service.app.improvements.forecast import forecasts, remaining, too_dear
from learnloop_service.app.improvements.jobs import ImprovementJobs, caller_of
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore, Taken, change
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.evaluation import EvaluationStarter
from learnloop_service.app.operations.start.release import ReleaseStarter, StartedRelease
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.schemas.releases import NewReleaseRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.app.settings import Settings
from learnloop_service.training.environment_check.check import check
from learnloop_service.training.environment_check.report import FindingState
from learnloop_service.training.protocol.model_name import ModelName

EVERY_S = 1.0
_CHECKED_TASKS = 24
"""Training tasks that the environment is checked on before any rollout."""
_MOST_MOVES = 20
"""Moves of an improvement in one look, so that others get their turn."""
_PROMOTED = (ImprovementStatus.REACHED, ImprovementStatus.BEST_SO_FAR)
"""Ends after which the champion is promoted, if that was asked for."""
_REFUSED = (ServiceError, ValueError)
"""Errors that a repetition would raise again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChampionPromotion:
    """Promotes the champions of improvements that end, or starts their releases."""

    evaluations: EvaluationStarter
    engine: EngineClient

    async def promote(self, record: ImprovementRecord, ended: dict[str, Any]) -> None:
        """Do what the request says, and save how the improvement ended in the same transaction.

        Raises Conflict for a champion that only a person may promote, or that cannot be promoted, and what promotions
        and releases raise.
        """
        improvement, champion, caller = record.improvement, record.champion, caller_of(record.improvement)
        if champion.only_by_person:
            raise Conflict("its prompt quotes training tasks, so a person has to read it first.")
        if champion.listed:
            raise Conflict("a model of the operator's list cannot be behind a name.")
        name, prompt = improvement.request["promote"]["as"], champion.prompt
        model, models, resources = _checkpoint(record), self.evaluations.models, self.evaluations.resources
        backend, step = (await models.model(caller, model.at(None))).backend, model.step or 0
        checkpoints = Checkpoints(resources.database, self.engine, models.connect, model.at(None), backend)
        if str(model) != champion.model:
            await checkpoints.create(champion.model, models.base_models)
        promoted = f"{improvement.project}/{name}"

        async def save(tx: AsyncSession, started: StartedRelease | None = None) -> None:
            begins = started and f"Release {started.row.id} of {promoted} begins."
            reason = begins or f"Promoted as {promoted}."
            await change(tx, improvement, **ended | {"reason": reason})

        if improvement.request["promote"]["how"] == "promote":
            reference = None if prompt is None else PromptReference.model_validate(prompt)
            await checkpoints.promote(name, step, reference, caller, save=save)
            return
        request = {"model": str(model.at(None)), "step": step}
        release = NewReleaseRequest.model_validate(request | {"prompt": None if prompt is None else prompt["sha256"]})
        await ReleaseStarter(self.engine, self.evaluations).start(improvement.project, name, release, caller, save)


def _checkpoint(record: ImprovementRecord) -> ModelName:
    """Return the checkpoint of the champion; of a base, step 0 of a model that is made of it."""
    with suppress(ValueError):
        if (named := ModelName.parse(record.champion.model)).step is not None:
            return named
    return ModelName(record.improvement.project, f"improved-{record.improvement.id[-6:]}", 0)


@dataclass(frozen=True, slots=True)
class ImprovementWatcher:
    """Makes the moves of improvements."""

    service: HandlerResources
    jobs: ImprovementJobs
    promotion: ChampionPromotion
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
        is_priced = limits or record.improvement.request.get("answers")
        outlook = policy.Outlook(
            proposals_open=await self._is_open(record),
            too_dear=too_dear(record, limits, await forecasts(self.service, record)) if is_priced else {},
            is_used_up=any(limit <= 0 for limit in limits.values()),
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

    async def _make(self, record: ImprovementRecord, move: policy.NextMove, limits: Mapping[str, float]) -> bool:
        match move.kind:
            case "add" if move.rung is Rung.MODEL:
                tried = sum(row.rung == Rung.MODEL for row in record.candidates)
                await self._add(record, move, record.improvement.request["models"][tried], listed=True)
            case "add":
                await self._add(record, move, record.trainable.model)
            case "skip" if move.number is None:
                await self._add(record, move, record.champion.model, state=CandidateState.SKIPPED)
            case "skip":
                candidate = record.candidates[move.number or 0]
                await self.store.decide(record, candidate, CandidateState.SKIPPED, reason=move.reason)
            case "wait":
                await self._wait(record)
            case "end":
                await self._end(record, move.status)
                log.info("improvement ended", improvement_id=record.improvement.id, status=move.status)
            case _:
                await self.jobs.start(record, move, limits)
        return move.kind in ("add", "skip")

    async def _add(self, record: ImprovementRecord, move: policy.NextMove, model: str, **values: Any) -> None:
        """Add a candidate with the champion's prompt."""
        champion, author = record.champion, record.improvement.actor
        same = {"rung": move.rung, "reason": move.reason or None, "prompt": champion.prompt}
        quotes = champion.only_by_person
        await self.store.add(record, author=author, model=model, only_by_person=quotes, **same, **values)

    async def _end(self, record: ImprovementRecord, status: ImprovementStatus) -> None:
        """Save how it ended; promote the champion in the same transaction, if that was asked for."""
        ended: dict[str, Any] = {"status": status, "finished_at": func.now(), "reason": None}
        if record.champion.number and status in _PROMOTED and record.improvement.request.get("promote"):
            try:
                return await self.promotion.promote(record, ended)
            except (Taken, Unavailable, *DATABASE_DOWN):
                raise
            except _REFUSED as error:
                ended["reason"] = f"Not promoted: {error}"
        await self.store.change(record, **ended)

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


def watcher_of(service: HandlerResources, http: httpx.AsyncClient) -> ImprovementWatcher:
    """Return the watcher of a service. `http` talks to its engine."""
    models = ModelResolver(service.database, service.engine, service.connect, base_models(service.settings))
    evaluations = EvaluationStarter(service, service.store, models, service.runner.wake)
    promotion = ChampionPromotion(evaluations, EngineClient(service.engine, http))
    return ImprovementWatcher(service, ImprovementJobs(service, evaluations), promotion)


@asynccontextmanager
async def improving(watcher: ImprovementWatcher) -> AsyncIterator[None]:
    """Make the moves of improvements while this is open."""
    async with every(EVERY_S, watcher.look, "improvements"):
        yield
