"""What only evaluations have, beside the leases that they share with runs (tests/integration/app/test_leases.py)."""

from typing import Any

import pytest

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.evaluations.publications import NEW
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.judges.base import JudgeCall
from tests.integration.app.leased_work import Evaluations, claimed
from tests.stored_evaluations import COMPARISON, REJUDGE, TRIAL, WHAT_IF


async def test_a_request_to_cancel_outlives_the_worker_that_did_not_hear_it(database: Database) -> None:
    kind, store = Evaluations(database), EvaluationStore(database)
    id = await kind.queue()
    lease = await claimed(kind.worker("first"))
    assert await store.heartbeat(lease, "a backend", 1.0) is False
    assert (await store.get(id)).wait_reason == "a backend"
    await store.cancel(id, "local")
    await kind.worker("first").release(lease)
    assert await store.heartbeat(await claimed(kind.worker("second")), None, 0.5) is True
    evaluation = await store.get(id)
    assert (evaluation.wait_reason, evaluation.driven_s) == (None, 1.5)


async def test_one_that_was_given_up_can_be_resumed(database: Database) -> None:
    kind, store = Evaluations(database), EvaluationStore(database)
    id = await kind.queue(claims=5)
    assert await kind.worker("w").claim() is None
    assert (await store.get(id)).status == "failed"
    assert await store.resume(id, "local") == "queued"
    assert (await claimed(kind.worker("w"))).id == id


async def test_what_judging_cost_is_added_up(database: Database) -> None:
    kind, store = Evaluations(database), EvaluationStore(database)
    id = await kind.queue()
    lease = await claimed(kind.worker("w"))
    call = JudgeCall("correctness", "m", 10, 2, 0.5, 1, 0.1)
    await store.keep_verdicts(lease, [], [call, call])
    await store.keep_verdicts(lease, [], [call])
    assert (await store.get(id)).judge == {"requests": 3, "prompt_tokens": 30, "completion_tokens": 6, "usd": 1.5}
    await store.keep_verdicts(lease, [], [JudgeCall("correctness", "m", 1, 1, None, 1, 0.1)])
    assert (await store.get(id)).judge["usd"] is None


@pytest.mark.parametrize(
    ("own", "published"),
    [({}, NEW), ({"trial": TRIAL}, NEW), ({"what_if": WHAT_IF}, None), ({"rejudge": REJUDGE}, None)],
)
async def test_only_what_compares_models_is_published(database: Database, own: Any, published: Any) -> None:
    store = EvaluationStore(database)
    async with database.begin() as tx:
        tx.add(EvaluationJob(id="e", project="p", request=COMPARISON | own, total=1))
    lease = await claimed(Evaluations(database).worker("w"))
    report = {"models": [], "trial": {"decision": "refuse"}}
    await store.finish(lease, EvaluationStatus.COMPLETED, report=report, publish=True)
    assert (await store.get("e")).published == published
