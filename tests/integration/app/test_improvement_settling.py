"""Jobs of improvements that are settled while other processes look at them, too."""

from typing import Any, cast

import pytest

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement
from learnloop_service.app.improvements.settling import Settling
from learnloop_service.app.improvements.store import ImprovementStore


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_job_that_another_process_has_started_meanwhile_is_left_alone(database: Database, status: str) -> None:
    job = EvaluationJob(id="E" * 26, project="p", status=status, request={}, total=64)
    improvement = Improvement(
        id="I" * 26,
        project="p",
        status="running",
        request={},
        facts={},
        actor="local",
        job_kind="evaluation",
        job_id=job.id,
        job_for="0",
    )
    candidate = Candidate(
        improvement_id=improvement.id, number=0, rung="as_it_is", state="measuring", author="local", model="m"
    )
    async with database.begin() as tx:
        tx.add_all([job, improvement])
        await tx.flush()
        tx.add(candidate)
    store = ImprovementStore(database)
    assert not await Settling(cast(Any, None), store).settle(await store.read(improvement.id))
    after = await store.read(improvement.id)
    assert (after.improvement.job_id, after.improvement.version) == (job.id, 0)
    assert after.champion.state == "measuring"
