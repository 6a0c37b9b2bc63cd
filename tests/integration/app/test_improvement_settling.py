"""Improvements that several processes look at."""

from typing import Any, cast

import psycopg
import pytest
from sqlalchemy import Engine, event

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.store import ImprovementStore

ID = "I" * 26


async def an_improvement(database: Database, status: str) -> None:
    """Save one that waits for an evaluation with that status."""
    job = EvaluationJob(id="E" * 26, project="p", status=status, request={}, total=64)
    waits = {"job_kind": "evaluation", "job_id": job.id, "job_for": "0"}
    improvement = Improvement(id=ID, project="p", status="running", request={}, facts={}, actor="local", **waits)
    async with database.begin() as tx:
        tx.add_all([job, improvement])
        await tx.flush()
        tx.add(Candidate(improvement_id=ID, number=0, rung="as_it_is", state="measuring", author="local", model="m"))


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_job_that_another_process_has_started_meanwhile_is_left_alone(database: Database, status: str) -> None:
    await an_improvement(database, status)
    store = ImprovementStore(database)
    assert not await Settling(cast(Any, None), store).settle(await store.read(ID))
    after = await store.read(ID)
    assert (after.improvement.job_id, after.improvement.version) == ("E" * 26, 0)
    assert after.champion.state == "measuring"


async def test_what_is_read_is_not_half_of_another_process_s_move(database: Database, database_url: str) -> None:
    await an_improvement(database, "completed")

    def move(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM improvement" in statement:
            with psycopg.connect(database_url) as connection:
                connection.execute("UPDATE improvement SET job_id = NULL, version = 1")
                connection.execute("UPDATE candidate SET state = 'accepted'")

    event.listen(Engine, "after_cursor_execute", move)
    try:
        record = await ImprovementStore(database).read(ID)
    finally:
        event.remove(Engine, "after_cursor_execute", move)
    assert (record.improvement.version, record.champion.state) == (0, "measuring")
