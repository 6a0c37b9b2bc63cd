"""Creates, moves and deletes runs. Each call is one transaction, which also writes the event of the change."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, bindparam, func, null, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.claims.moves import move_held, move_locked
from learnloop_service.app.datasets.documents import NewDocument, save
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.dependents import lock_dependents
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import LIVE, Move, RunStatus, Verb, allowed
from learnloop_service.app.errors import Conflict, ModelBusy, NotAllowed, existing
from learnloop_service.app.events.log import append
from learnloop_service.app.runs import ledger
from learnloop_service.app.runs.claims import UNOWNED
from learnloop_service.app.runs.journal_entries import drop_unscored
from learnloop_service.app.runs.verdicts import verdict_on
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.types import IterationProgress

_ENDINGS: Mapping[RunStatus, tuple[Move, EventType]] = {
    RunStatus.COMPLETED: (Move.COMPLETE, EventType.RUN_COMPLETED),
    RunStatus.FAILED: (Move.FAIL, EventType.RUN_FAILED),
    RunStatus.CANCELLED: (Move.STOP, EventType.RUN_CANCELLED),
}


_REQUEUED: Mapping[str, Any] = {
    "error": None,
    "claims": 0,
    "wait_reason": None,
    "finished_at": None,
    "cancel_requested": False,
    "pause_requested": False,
    "no_signal_iterations": 0,
    "diagnosis_pause": None,
    "shortage": null(),
}
"""Columns to reset on a run that is queued again."""


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """What a run's owner has asked its worker to do."""

    cancel: bool
    pause: bool


class RunStore:
    """Runs in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        run: Run,
        documents: Iterable[NewDocument] = (),
        *,
        also: Callable[[AsyncSession], Awaitable[None]] | None = None,
        actor: str = "local",
    ) -> None:
        """Save a queued run and its documents. `also` can add to the transaction before the run's first event.

        Raises ModelBusy if a live run holds its model.
        """
        try:
            async with self._database.begin() as tx:
                await _lock_models(tx, run)
                tx.add(run)
                await tx.flush()  # detects a busy model before a large graph is sent
                await save(tx, documents)
                if also is not None:
                    await also(tx)
                await append(tx, run.id, EventType.RUN_CREATED, actor, _created(run))
        except IntegrityError as error:
            holder = await self._holder(run)
            if holder is None:
                raise Conflict("The run could not be saved; retry.") from error
            raise ModelBusy(f"{run.model_project}/{run.model_name}", holder) from None

    async def _holder(self, run: Run) -> str | None:
        query = _live(run.backend, ModelName(run.model_project, run.model_name))
        async with self._database() as tx:
            return (await tx.execute(query)).scalar_one_or_none()

    async def get(self, run_id: str) -> Run:
        """Return a run. Raises NotFound."""
        async with self._database() as tx:
            return existing(await tx.get(Run, run_id), "run", run_id)

    async def heartbeat(
        self, lease: Lease[Run], progress: IterationProgress | None, wait_reason: str | None = None
    ) -> PendingRequests:
        """Save a running run's progress and what it waits for. Returns its owner's requests. Raises LeaseLost."""
        values: dict[str, Any] = {"wait_reason": wait_reason}
        if progress is not None:
            values |= {
                "phase": progress.phase,
                "phase_iteration": progress.iteration,
                "phase_done": progress.done,
                "phase_total": progress.total,
            }
            if (failures := progress.failures) is not None:
                values["rollout_failures"] = asdict(failures) if failures.failed else null()
        save = update(Run).where(lease.held()).values(**values).returning(Run.cancel_requested, Run.pause_requested)
        async with self._database.begin() as tx:
            row = (await tx.execute(save)).one_or_none()
        if row is None:
            raise LeaseLost(lease)
        return PendingRequests(*row)

    async def edit(self, run_id: str, changes: Mapping[str, Any]) -> Run:
        """Change what its owner says about a run (`name`, `tags`, `notes`, `starred`). Raises NotFound."""
        change = update(Run).where(Run.id == run_id).values(**changes).returning(Run)
        async with self._database.begin() as tx:
            return existing((await tx.execute(change)).scalar_one_or_none(), "run", run_id)

    async def cancel(self, run_id: str, actor: str) -> RunStatus:
        """Cancel a waiting run, or ask the worker of a running one to stop. Returns the resulting status.

        Raises NotFound, NotAllowed.
        """
        async with self._database.begin() as tx:
            run = await _locked(tx, run_id, Verb.CANCEL)
            if run.status == RunStatus.RUNNING:
                if not run.cancel_requested:
                    run.cancel_requested = True
                    await append(tx, run_id, EventType.CANCEL_REQUESTED, actor)
            elif run.status != RunStatus.CANCELLED:
                await move_locked(tx, run, Move.CANCEL, finished_at=func.now(), wait_reason=None)
                await append(tx, run_id, EventType.RUN_CANCELLED, actor, await verdict_on(tx, run_id))
            return RunStatus(run.status)

    async def pause(self, run_id: str, actor: str) -> RunStatus:
        """Pause a waiting run, or ask the worker of a running one to pause it. Otherwise like `cancel`."""
        async with self._database.begin() as tx:
            run = await _locked(tx, run_id, Verb.PAUSE)
            if run.status == RunStatus.RUNNING:
                if not run.pause_requested:
                    run.pause_requested = True
                    await append(tx, run_id, EventType.PAUSE_REQUESTED, actor)
            else:
                reason = f"paused by {actor}"
                await move_locked(tx, run, Move.PAUSE, wait_reason=reason, shortage=null())
                data = {"reason": reason, **await verdict_on(tx, run_id)}
                await append(tx, run_id, EventType.RUN_PAUSED, actor, data)
            return RunStatus(run.status)

    async def resume(self, run_id: str, actor: str, budget: Mapping[str, Any] | None = None) -> RunStatus:
        """Queue a paused run again. `budget` replaces the limits that it names.

        Raises NotFound, NotAllowed, and Conflict if its budget would stop the run again.
        """
        return await self._requeue(run_id, Verb.RESUME, Move.RESUME, EventType.RUN_RESUMED, actor, budget)

    async def retry(self, run_id: str, actor: str) -> RunStatus:
        """Queue a failed run again, to continue after what it finished. Its judge is asked again for scores that it did
        not give. Raises NotFound, NotAllowed, ModelBusy."""
        return await self._requeue(run_id, Verb.RETRY, Move.RETRY, EventType.RUN_RETRIED, actor)

    async def _requeue(
        self,
        run_id: str,
        verb: Verb,
        move: Move,
        event: EventType,
        actor: str,
        budget: Mapping[str, Any] | None = None,
    ) -> RunStatus:
        try:
            async with self._database.begin() as tx:
                run = await _locked(tx, run_id, verb)
                data: dict[str, Any] = {"error": run.error} if run.error else {}
                if verb is Verb.RESUME:
                    changed = ledger.change_budget(run, budget)
                    if budget is not None:
                        data["budget"] = changed
                if verb is Verb.RETRY:
                    await drop_unscored(tx, run_id)
                await move_locked(tx, run, move, **_REQUEUED)
                await append(tx, run_id, event, actor, data)
        except IntegrityError as error:
            run = await self.get(run_id)
            if (holder := await self._holder(run)) is None:
                raise Conflict("The run could not be queued; retry.") from error
            raise ModelBusy(f"{run.model_project}/{run.model_name}", holder) from None
        return move.target

    async def suspend(self, lease: Lease[Run], reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        """Pause a running run whose work has stopped, until it is resumed. Does nothing if the lease is lost.

        `shortage` describes the budget that stopped it.
        """
        values = {"pause_requested": False, "wait_reason": reason, "shortage": shortage or null(), **UNOWNED}
        async with self._database.begin() as tx:
            if await move_held(tx, lease, Move.SUSPEND, **values):
                if shortage is not None:
                    await append(tx, lease.id, EventType.BUDGET_REACHED, lease.actor, shortage)
                data = {"reason": reason, **await verdict_on(tx, lease.id)}
                await append(tx, lease.id, EventType.RUN_PAUSED, lease.actor, data)

    async def finish(
        self,
        lease: Lease[Run],
        status: RunStatus,
        *,
        error: str | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """End a running run with a final status. Does nothing if the lease is lost."""
        move, event = _ENDINGS[status]
        values = {"error": error, "summary": summary, "finished_at": func.now(), "wait_reason": None, **UNOWNED}
        async with self._database.begin() as tx:
            if await move_held(tx, lease, move, **values):
                data = {"error": error} if error else {"summary": summary} if summary else {}
                await append(tx, lease.id, event, lease.actor, data | await verdict_on(tx, lease.id))

    async def delete(self, run_id: str, forget_model: Callable[[], Awaitable[None]]) -> Run:
        """Delete a run that has ended, with all its rows, and return it. Raises NotFound, NotAllowed.

        `forget_model` deletes its model first, unless another run needs it. If that raises, nothing is deleted.
        """
        async with self._database.begin() as tx:
            run = await _locked(tx, run_id, Verb.DELETE)
            await _lock_models(tx, run)
            needs_it = _needs(run.backend, ModelName(run.model_project, run.model_name))
            others = select(Run.id).where(Run.id != run_id, needs_it).limit(1)
            if (await tx.execute(others)).scalar_one_or_none() is None:
                await forget_model()
            await lock_dependents(tx, run_id)
            await tx.delete(run)
        return run

    @asynccontextmanager
    async def holding_model(self, backend: str, model: ModelName, *, unneeded: bool = False) -> AsyncIterator[None]:
        """Prevent runs of the model from being created or deleted within the context.

        Raises ModelBusy if a live run holds the model; with `unneeded`, Conflict if any run still needs it.
        """
        async with self._database.begin() as tx:
            await _lock(tx, {str(model)})
            if (holder := (await tx.execute(_live(backend, model))).scalar_one_or_none()) is not None:
                raise ModelBusy(str(model), holder)
            needing = select(Run.id).where(_needs(backend, model)).limit(1)
            if unneeded and (run_id := (await tx.execute(needing)).scalar_one_or_none()) is not None:
                raise Conflict(f"Run {run_id} needs {model}. Delete the run: the model goes with it.")
            yield


async def _locked(tx: AsyncSession, run_id: str, verb: Verb) -> Run:
    """Return the run's row, locked until the transaction ends. Raises NotFound, NotAllowed."""
    run = existing(await tx.get(Run, run_id, with_for_update={"key_share": True}), "run", run_id)
    require_verb(run, verb)
    return run


def require_verb(run: Run, verb: Verb) -> None:
    """Raise NotAllowed if the run's state does not allow the verb."""
    verbs = allowed(RunStatus(run.status))
    if verb not in verbs:
        raise NotAllowed(f"Cannot {verb} a {run.status} run", verbs)


async def _lock_models(tx: AsyncSession, run: Run) -> None:
    """Lock the run's model and base model until the transaction ends, so that their runs are not created or deleted.

    Otherwise a model could be deleted while a new run starts to need it.
    """
    base, at, _ = run.base_model.partition("@")
    await _lock(tx, {f"{run.model_project}/{run.model_name}", *([base] if at else ())})


_LOCK = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("what", type_=Text), 0)))


async def _lock(tx: AsyncSession, names: Iterable[str]) -> None:
    for name in sorted(names):
        await tx.execute(_LOCK, {"what": f"model {name}"})


def _needs(backend: str, model: ModelName) -> ColumnElement[bool]:
    """Return the condition that a run trains the model, or has yet to fork its own from a checkpoint of it."""
    same = and_(Run.model_project == model.project, Run.model_name == model.name)
    ended = Run.status.in_((RunStatus.COMPLETED, RunStatus.CANCELLED))
    forks = and_(Run.base_model.startswith(f"{model}@", autoescape=True), Run.step.is_(None), ~ended)
    return and_(Run.backend == backend, or_(same, forks))


def _live(backend: str, model: ModelName) -> Select[str]:
    """Select the id of the live run that holds the model. There is at most one."""
    return select(Run.id).where(
        Run.backend == backend,
        Run.model_project == model.project,
        Run.model_name == model.name,
        Run.status.in_(LIVE),
    )


def _created(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "environment": run.environment,
        "judge": run.judge,
        "backend": run.backend,
        "model": {"project": run.model_project, "name": run.model_name, "base_model": run.base_model},
        "iterations": run.iterations_total,
        "parent": {"run_id": run.parent_run_id, "step": run.parent_step} if run.parent_run_id else None,
    }
