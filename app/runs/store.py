"""All SQL that makes and moves runs. One transaction per call, with the event that tells of it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.session import Sessions
from app.db.tables import Run
from app.domain.event_types import EventType
from app.domain.run_state import LIVE, TERMINAL, RunStatus, Verb, allowed
from app.errors import Conflict, ModelBusy, NotAllowed, NotFound
from app.events.log import append
from app.runs import ledger
from app.runs.documents import NewDocument, save
from app.runs.leases import NOBODYS, Lease, LeaseLost
from training.types import Progress

_ENDED = {
    RunStatus.COMPLETED: EventType.RUN_COMPLETED,
    RunStatus.FAILED: EventType.RUN_FAILED,
    RunStatus.CANCELLED: EventType.RUN_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the owner of a running run asked its worker for."""

    cancel: bool
    pause: bool


class RunStore:
    """Runs in the database."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create(
        self,
        run: Run,
        documents: Iterable[NewDocument] = (),
        *,
        beside: Callable[[AsyncSession], Awaitable[None]] | None = None,
        actor: str = "local",
    ) -> None:
        """Save a queued run, its documents and what `beside` saves with it, before its first event.

        Raises ModelBusy if a live run holds its model.
        """
        try:
            async with self._sessions.begin() as session:
                await _hold_models(session, run)
                session.add(run)
                await session.flush()  # a busy model is told before a big graph is sent
                await save(session, documents)
                if beside is not None:
                    await beside(session)
                await append(session, run.id, EventType.RUN_CREATED, actor, _created(run))
        except IntegrityError as error:
            holder = await self._holder(run)
            if holder is None:
                raise Conflict("the run could not be saved; try again") from error
            raise ModelBusy(f"{run.model_project}/{run.model_name}", holder) from None

    async def _holder(self, run: Run) -> str | None:
        query = select(Run.id).where(
            Run.backend == run.backend,
            Run.model_project == run.model_project,
            Run.model_name == run.model_name,
            Run.status.in_(LIVE),
        )
        async with self._sessions() as session:
            return (await session.execute(query)).scalar_one_or_none()

    async def get(self, run_id: str) -> Run:
        """Raises NotFound."""
        async with self._sessions() as session:
            run = await session.get(Run, run_id)
        if run is None:
            raise NotFound(f"There is no run {run_id!r}.")
        return run

    async def beat(self, lease: Lease, progress: Progress | None, waits: str | None = None) -> Wishes:
        """Save how far a running run is and what it waits for; what its owner wishes. Raises LeaseLost."""
        values: dict[str, Any] = {"wait_reason": waits}
        if progress is not None:
            values |= {
                "phase": progress.phase,
                "phase_iteration": progress.iteration,
                "phase_done": progress.done,
                "phase_total": progress.total,
            }
        beat = update(Run).where(lease.held()).values(**values).returning(Run.cancel_requested, Run.pause_requested)
        async with self._sessions.begin() as session:
            row = (await session.execute(beat)).one_or_none()
        if row is None:
            raise LeaseLost(f"run {lease.run_id} is not ours any more")
        return Wishes(*row)

    async def cancel(self, run_id: str, actor: str) -> RunStatus:
        """Cancel a waiting run at once, ask the worker of a running one to stop; its status then.

        Raises NotFound, NotAllowed.
        """
        async with self._sessions.begin() as session:
            run = await _locked(session, run_id, Verb.CANCEL)
            if run.status == RunStatus.RUNNING:
                if not run.cancel_requested:
                    run.cancel_requested = True
                    await append(session, run_id, EventType.CANCEL_REQUESTED, actor)
            elif run.status != RunStatus.CANCELLED:
                _set(run, status=RunStatus.CANCELLED, finished_at=func.now(), wait_reason=None)
                await append(session, run_id, EventType.RUN_CANCELLED, actor)
            return RunStatus(run.status)

    async def pause(self, run_id: str, actor: str) -> RunStatus:
        """Pause a waiting run at once, ask the worker of a running one to; its status then. Raises as `cancel`."""
        async with self._sessions.begin() as session:
            run = await _locked(session, run_id, Verb.PAUSE)
            if run.status == RunStatus.RUNNING:
                if not run.pause_requested:
                    run.pause_requested = True
                    await append(session, run_id, EventType.PAUSE_REQUESTED, actor)
            else:
                _set(run, status=RunStatus.PAUSED, wait_reason=f"paused by {actor}")
                await append(session, run_id, EventType.RUN_PAUSED, actor, {"reason": run.wait_reason})
            return RunStatus(run.status)

    async def resume(self, run_id: str, actor: str, budget: Mapping[str, Any] | None = None) -> RunStatus:
        """Queue a paused run again, with another budget if one is given; what it does not name stays.

        Raises NotFound, NotAllowed, and Conflict where its budget would stop it again.
        """
        return await self._requeue(run_id, Verb.RESUME, EventType.RUN_RESUMED, actor, budget)

    async def retry(self, run_id: str, actor: str) -> RunStatus:
        """Queue a failed run again; it goes on after what it finished. Raises NotFound, NotAllowed, ModelBusy."""
        return await self._requeue(run_id, Verb.RETRY, EventType.RUN_RETRIED, actor)

    async def _requeue(
        self, run_id: str, verb: Verb, event: EventType, actor: str, budget: Mapping[str, Any] | None = None
    ) -> RunStatus:
        try:
            async with self._sessions.begin() as session:
                run = await _locked(session, run_id, verb)
                told: dict[str, Any] = {"error": run.error} if run.error else {}
                if verb is Verb.RESUME:
                    await ledger.change_budget(session, run, budget)
                if budget is not None:
                    told["budget"] = run.request["budget"]
                _set(
                    run,
                    status=RunStatus.QUEUED,
                    error=None,
                    attempts=0,
                    wait_reason=None,
                    finished_at=None,
                    cancel_requested=False,
                    pause_requested=False,
                )
                await session.flush()
                await append(session, run_id, event, actor, told)
        except IntegrityError as error:
            run = await self.get(run_id)
            if (holder := await self._holder(run)) is None:
                raise Conflict("the run could not be queued; try again") from error
            raise ModelBusy(f"{run.model_project}/{run.model_name}", holder) from None
        return RunStatus.QUEUED

    async def paused(self, lease: Lease, reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        """A running run's work has stopped, to go on when it is resumed. Nothing if the lease is not ours any more.

        `shortage` tells of the budget that stopped it.
        """
        values = {"status": RunStatus.PAUSED, "pause_requested": False, "wait_reason": reason, **NOBODYS}
        async with self._sessions.begin() as session:
            if await _moved(session, lease, values):
                if shortage is not None:
                    await append(session, lease.run_id, EventType.BUDGET_REACHED, lease.actor, shortage)
                await append(session, lease.run_id, EventType.RUN_PAUSED, lease.actor, {"reason": reason})

    async def finish(
        self, lease: Lease, status: RunStatus, *, error: str | None = None, summary: Mapping[str, Any] | None = None
    ) -> None:
        """Move a running run to a final status. Nothing happens if the lease is not ours any more."""
        assert status in TERMINAL
        values = {"status": status, "error": error, "summary": summary, "finished_at": func.now()}
        values |= {"wait_reason": None, **NOBODYS}
        async with self._sessions.begin() as session:
            if await _moved(session, lease, values):
                told = {"error": error} if error else {"summary": summary} if summary else {}
                await append(session, lease.run_id, _ENDED[status], lease.actor, told)

    async def delete(self, run_id: str, forget_model: Callable[[], Awaitable[None]]) -> Run:
        """Delete a run that has ended, with all its rows; returns what it was. Raises NotFound, NotAllowed.

        `forget_model` deletes its model first, if no other run needs that: what it raises leaves everything there.
        """
        async with self._sessions.begin() as session:
            run = await _locked(session, run_id, Verb.DELETE)
            await _hold_models(session, run)
            others = select(Run.id).where(Run.id != run_id, _needs_model_of(run)).limit(1)
            if (await session.execute(others)).scalar_one_or_none() is None:
                await forget_model()
            await session.delete(run)
        return run


async def _locked(session: AsyncSession, run_id: str, verb: Verb) -> Run:
    """The run's row, which nobody else moves before the transaction ends. Raises NotFound, NotAllowed."""
    run = await session.get(Run, run_id, with_for_update={"key_share": True})
    if run is None:
        raise NotFound(f"There is no run {run_id!r}.")
    require_verb(run, verb)
    return run


def require_verb(run: Run, verb: Verb) -> None:
    """Raises NotAllowed if the run's state does not allow that."""
    verbs = allowed(RunStatus(run.status))
    if verb not in verbs:
        raise NotAllowed(f"a run that is {run.status} takes no {verb}", verbs)


async def _hold_models(session: AsyncSession, run: Run) -> None:
    """Until the transaction ends nobody else makes or deletes a run of its model, or of the one that it goes on from:
    a model is not deleted while somebody begins to need it."""
    base, at, _ = run.base_model.partition("@")
    for name in sorted({f"{run.model_project}/{run.model_name}", *([base] if at else ())}):
        await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"model {name}", 0))))


def _needs_model_of(run: Run) -> ColumnElement[bool]:
    """True of runs that train the same model, and of those that are still to make theirs from a checkpoint of it."""
    name = f"{run.model_project}/{run.model_name}"
    same = and_(Run.model_project == run.model_project, Run.model_name == run.model_name)
    ended = Run.status.in_((RunStatus.COMPLETED, RunStatus.CANCELLED))
    forks = and_(Run.base_model.startswith(f"{name}@", autoescape=True), Run.step.is_(None), ~ended)
    return and_(Run.backend == run.backend, or_(same, forks))


def _set(run: Run, **values: Any) -> None:
    for name, value in values.items():
        setattr(run, name, value)


async def _moved(session: AsyncSession, lease: Lease, values: Mapping[str, Any]) -> bool:
    move = update(Run).where(lease.held()).values(**values).returning(Run.id)
    return (await session.execute(move)).scalar_one_or_none() is not None


def _created(run: Run) -> dict[str, Any]:
    return {
        "environment": run.environment,
        "judge": run.judge,
        "backend": run.backend,
        "model": {"project": run.model_project, "name": run.model_name, "base_model": run.base_model},
        "iterations": run.iterations_total,
        "parent": {"run_id": run.parent_run_id, "step": run.parent_step} if run.parent_run_id else None,
    }
