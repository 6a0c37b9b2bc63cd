"""Improvements that several processes look at."""

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from sqlalchemy import Engine, delete, event, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement, Run
from learnloop_service.app.improvements.actions import Actions
from learnloop_service.app.improvements.jobs import origin_of
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.store import ImprovementStore
from learnloop_service.app.operations.start.run import ForkOrigin
from tests.fakes.stored_request import stored_run

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


async def test_a_comparison_that_is_cancelled_keeps_its_share_of_the_error(database: Database) -> None:
    await an_improvement(database, "completed")
    again = {"author": "local", "model": "m", "prompt": {"sha256": "a" * 64}, "screening_id": "S" * 26}
    screened = {"training": {"won": 5, "lost": 0, "tasks": 32}}
    async with database.begin() as tx:
        of_prompt = {"improvement_id": ID, "rung": "prompt", "error_share": 0.0125, "evidence": screened}
        tx.add(Candidate(number=1, state="measuring", gate_id="G" * 26, **of_prompt, **again))
        await tx.execute(update(Improvement).values(job_kind=None, job_id=None))
    service = cast(Any, SimpleNamespace(database=database))
    await Actions(service, store := ImprovementStore(database)).cancel(ID, "local")
    as_it_is, cancelled, fresh = (await store.read(ID)).candidates
    assert as_it_is.state == "proposed", "without a comparison it is tried as the same candidate"
    assert (cancelled.state, cancelled.error_share, cancelled.reason) == ("skipped", 0.0125, "cancelled by local")
    assert (fresh.number, fresh.state, fresh.error_share, fresh.gate_id) == (2, "proposed", None, None)
    assert (fresh.prompt, fresh.evidence) == (again["prompt"], screened)


@pytest.mark.parametrize(("sources", "first"), [(["oracle", "own"], 480), (["own"], 0)])
async def test_grpo_begins_with_what_was_not_demonstrated(database: Database, sources: list[str], first: int) -> None:
    await an_improvement(database, "completed")
    run = stored_run(status="completed")
    imitation = {"rung": "imitation", "state": "accepted", "author": "local", "model": "p/m@2", "run_id": run.id}
    async with database.begin() as tx:
        tx.add_all([run, Candidate(improvement_id=ID, number=1, **imitation)])
        facts, request = {"oracle": 480}, {"imitation": {"sources": sources}}
        await tx.execute(update(Improvement).values(champion=1, facts=facts, request=request))
    record = await ImprovementStore(database).read(ID)
    assert await origin_of(database, record) == ForkOrigin(run.id, 2, None, first_scenario=first)
    async with database.begin() as tx:
        await tx.execute(delete(Run))
    assert await origin_of(database, record) is None
