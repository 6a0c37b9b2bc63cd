"""What a run leaves behind is deleted while a worker writes to a row that refers to it: neither ends in a deadlock."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text, update
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Run
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.store import RunStore
from tests.conditions import answered
from tests.integration.app.emails import make_run, make_trajectory
from tests.integration.app.waiting_transactions import is_waiting


async def _nothing() -> None:
    """The run's model is not deleted."""


async def _job(database: Database, **more: Any) -> str:
    id = str(ULID())
    async with database.begin() as tx:
        tx.add(EvaluationJob(id=id, project="learnloop", status="completed", request={}, total=1, **more))
    return id


async def _beside(database: Database, table: Any, row: str, deleting: Any) -> None:
    """Update a row twice in one transaction, as workers do, and delete what it refers to in between."""
    change = update(table).where(table.id == row).values(event_seq=table.event_seq + 1)
    async with database.begin() as tx:
        await tx.execute(change)
        task = asyncio.create_task(deleting)
        await answered(lambda: is_waiting(database), bool)
        await tx.execute(change)
    await task


async def test_a_run_is_deleted_while_its_fork_is_saved(database: Database) -> None:
    parent, fork = await make_run(database), await make_run(database)
    async with database.begin() as tx:
        await tx.execute(update(Run).where(Run.id == fork).values(parent_run_id=parent, parent_step=1))
    await _beside(database, Run, fork, RunStore(database).delete(parent, _nothing))
    async with database() as tx:
        assert await tx.get(Run, parent) is None
        assert (await tx.get_one(Run, fork)).parent_run_id is None


@pytest.mark.parametrize("is_what_if", [True, False])
async def test_a_run_is_deleted_while_its_rollouts_are_continued_or_judged_again(
    is_what_if: bool, database: Database
) -> None:
    run_id = await make_run(database)
    if is_what_if:
        job = await _job(database, trajectory_id=await make_trajectory(database, run_id, {}))
    else:
        job = await _job(database, run_id=run_id)
    await _beside(database, EvaluationJob, job, RunStore(database).delete(run_id, _nothing))
    async with database() as tx:
        assert await tx.get(EvaluationJob, job) is None


async def test_a_what_if_is_deleted_while_its_continuations_are_continued(database: Database) -> None:
    first = await _job(database)
    rollout = await make_trajectory(database, None, {})
    async with database.begin() as tx:
        values = {"job": first, "id": rollout}
        await tx.execute(text("UPDATE trajectory SET evaluation_id = :job, slot = '0/0/0' WHERE id = :id"), values)
    second = await _job(database, trajectory_id=rollout)
    await _beside(database, EvaluationJob, second, EvaluationStore(database).delete(first))
    async with database() as tx:
        assert await tx.get(EvaluationJob, second) is None
