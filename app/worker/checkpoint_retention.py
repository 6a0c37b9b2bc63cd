"""Prunes the checkpoints of a running run. The best and newest ones, and those at regular steps, are kept.

The newest two always are: a checkpoint that turns out to be damaged or bad leads back to the one before it.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, union, update

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Promotion, Release, Run
from learnloop_service.app.domain.release_state import LIVE as LIVE_RELEASE
from learnloop_service.app.domain.run_state import LIVE
from learnloop_service.app.domain.stored_request import KeptCheckpoints
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.runs.resume_point import sampled_steps
from learnloop_service.training.backends.base import Backend, BackendRefused, BackendUnavailable, Policy

_NEWEST = 2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RatedCheckpoint:
    """A checkpoint of a run. `success` is None if it was not evaluated."""

    step: int
    success: float | None


def to_delete(checkpoints: Sequence[RatedCheckpoint], keep: KeptCheckpoints, *, best_step: int) -> list[int]:
    """Return the steps to delete. `best_step` is always kept. Of equally successful ones, the later is better."""
    rated = sorted(
        (checkpoint for checkpoint in checkpoints if checkpoint.success is not None),
        key=lambda checkpoint: (checkpoint.success, checkpoint.step),
    )
    retained = {best_step} | {checkpoint.step for checkpoint in rated[-keep.keep_best :]}
    retained |= set(sorted(checkpoint.step for checkpoint in checkpoints)[-max(keep.keep_last, _NEWEST) :])
    if keep.keep_every is not None:
        retained |= {checkpoint.step for checkpoint in checkpoints if checkpoint.step % keep.keep_every == 0}
    retained |= spread(
        [checkpoint.step for checkpoint in rated if checkpoint.step not in retained], keep.keep_evaluated
    )
    return sorted({checkpoint.step for checkpoint in checkpoints} - retained)


def spread(steps: Iterable[int], most: int) -> set[int]:
    """Return at most `most` of the steps: the first, the last, and others that are far from each other."""
    chosen = sorted(steps)
    while len(chosen) > max(most, 2):
        del chosen[min(range(1, len(chosen) - 1), key=lambda index: chosen[index + 1] - chosen[index - 1])]
    return set(chosen[-most:]) if most else set()


async def prune(
    database: Database,
    main_loop: asyncio.AbstractEventLoop,
    run: Run,
    keep: KeptCheckpoints | None,
    backend: Backend,
    policy: Policy,
) -> None:
    """Delete the run's checkpoints that `keep` does not cover; None keeps all.

    `main_loop` is the database's event loop. Checkpoints in use are kept: promoted ones, candidates of live releases,
    those of the model's other runs, those that unfinished forks start from, and those that rollouts of this run are
    still sampled from. A starred run keeps all that it has. A failed deletion is retried after the next iteration.
    """
    if keep is None:
        return
    try:
        steps = await run_on_loop(main_loop, _steps_to_delete(database, run, keep))
        if not steps:
            return
        there = await backend.checkpoints(run.model_project, run.model_name)
        await policy.delete_checkpoints(set(there) - set(steps))
        await run_on_loop(main_loop, _mark_deleted(database, run.id, steps))
    except (BackendUnavailable, BackendRefused, ValueError, *DATABASE_DOWN) as error:
        log.warning("old checkpoints not deleted", run_id=run.id, error=str(error))
    else:
        log.info("old checkpoints deleted", run_id=run.id, steps=steps)


async def _steps_to_delete(database: Database, run: Run, keep: KeptCheckpoints) -> list[int]:
    query = select(Checkpoint.step, Checkpoint.success).where(
        Checkpoint.run_id == run.id, Checkpoint.deleted_at.is_(None)
    )
    async with database() as tx:
        checkpoints = [RatedCheckpoint(step, success) for step, success in await tx.execute(query)]
        best, is_starred = (await tx.execute(select(Run.best_step, Run.starred).where(Run.id == run.id))).one()
        if is_starred:
            return []
        others = await tx.execute(_needed_by_others(run))
        needed = {*others.scalars(), *await sampled_steps(tx, run.id)}
    return [step for step in to_delete(checkpoints, keep, best_step=best or 0) if step not in needed]


def _needed_by_others(run: Run) -> Any:
    """Return steps of the model that were ever promoted, which includes the stable arm of a release, are the candidate
    of a live release, were made by another run, or are needed by an unfinished fork."""
    promoted = select(Promotion.step).where(
        Promotion.project == run.model_project, Promotion.model_name == run.model_name
    )
    candidates = select(Release.step).where(
        Release.project == run.model_project,
        Release.model_name == run.model_name,
        Release.state.in_(sorted(LIVE_RELEASE)),
    )
    same_model = (Run.model_project == run.model_project, Run.model_name == run.model_name, Run.id != run.id)
    of_runs = select(Checkpoint.step).join(Run, Run.id == Checkpoint.run_id).where(*same_model)
    of_forks = select(Run.parent_step).where(Run.parent_run_id == run.id, Run.status.in_(LIVE))
    return union(promoted, candidates, of_runs, of_forks)


async def _mark_deleted(database: Database, run_id: str, steps: Collection[int]) -> None:
    gone = update(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.step.in_(steps))
    async with database.begin() as tx:
        await tx.execute(gone.values(deleted_at=func.now()))
