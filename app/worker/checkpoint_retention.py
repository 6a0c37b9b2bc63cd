"""Which checkpoints of a run are kept while it goes on: the best, the newest, and every so many steps one."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, union, update

from app.aio.event_loops import run_on_loop
from app.db.session import Sessions
from app.db.tables import Checkpoint, Promotion, Run
from app.domain.run_state import LIVE
from app.errors import DATABASE_DOWN
from training.backends.base import Backend, BackendRefused, BackendUnavailable, Policy

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint of a run; `success` None: it was not evaluated."""

    step: int
    success: float | None


def doomed(
    made: Sequence[Made], *, best_step: int, keep_best: int, keep_last: int, keep_every: int | None
) -> list[int]:
    """The steps that need not be kept. `best_step` stays whatever else does; equal ones: the later one is better."""
    rated = sorted((each for each in made if each.success is not None), key=lambda each: (each.success, each.step))
    kept = {best_step} | {each.step for each in rated[-keep_best:]}
    kept |= set(sorted(each.step for each in made)[-keep_last:])
    if keep_every is not None:
        kept |= {each.step for each in made if each.step % keep_every == 0}
    return sorted({each.step for each in made} - kept)


async def thin_out(
    sessions: Sessions, home: asyncio.AbstractEventLoop, run: Run, backend: Backend, policy: Policy
) -> None:
    """Delete the checkpoints that the run's request does not keep; `home` is the event loop of `sessions`.

    What others need stays: promoted ones, and those of other runs of the model. What cannot be done now is tried again
    after the next iteration.
    """
    choice: Mapping[str, Any] | None = run.request.get("checkpoints")
    if choice is None:
        return
    try:
        steps = await run_on_loop(home, _doomed(sessions, run, choice))
        if not steps:
            return
        there = await backend.checkpoints(run.model_project, run.model_name)
        await policy.delete_checkpoints(set(there) - set(steps))
        await run_on_loop(home, _note(sessions, run.id, steps))
    except (BackendUnavailable, BackendRefused, ValueError, *DATABASE_DOWN) as error:
        log.warning("old checkpoints not deleted", run_id=run.id, error=str(error))
    else:
        log.info("old checkpoints deleted", run_id=run.id, steps=steps)


async def _doomed(sessions: Sessions, run: Run, choice: Mapping[str, Any]) -> list[int]:
    query = select(Checkpoint.step, Checkpoint.success).where(
        Checkpoint.run_id == run.id, Checkpoint.deleted_at.is_(None)
    )
    async with sessions() as session:
        made = [Made(step, success) for step, success in await session.execute(query)]
        best = (await session.execute(select(Run.best_step).where(Run.id == run.id))).scalar_one()
        others = await session.execute(_needed_by_others(run))
        needed = set(others.scalars())
    return [step for step in doomed(made, best_step=best or 0, **choice) if step not in needed]


def _needed_by_others(run: Run) -> Any:
    """Steps of the model that were promoted once, that are another run's, or that a fork which waits begins with."""
    promoted = select(Promotion.step).where(
        Promotion.project == run.model_project, Promotion.model_name == run.model_name
    )
    same_model = (Run.model_project == run.model_project, Run.model_name == run.model_name, Run.id != run.id)
    of_runs = select(Checkpoint.step).join(Run, Run.id == Checkpoint.run_id).where(*same_model)
    of_forks = select(Run.parent_step).where(Run.parent_run_id == run.id, Run.status.in_(LIVE))
    return union(promoted, of_runs, of_forks)


async def _note(sessions: Sessions, run_id: str, steps: Collection[int]) -> None:
    gone = update(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.step.in_(steps))
    async with sessions.begin() as session:
        await session.execute(gone.values(deleted_at=func.now()))
