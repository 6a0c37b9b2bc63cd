"""Leases of evaluations: one holder, and a worker that comes too late changes nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from ulid import ULID

from app.db.session import make_engine, make_sessions, parse_url
from app.db.tables import EvaluationJob
from app.domain.evaluation_state import EvaluationStatus
from app.evaluations.store import MAX_CLAIMS, EvaluationLost, EvaluationStore
from judges.base import JudgeCall


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[EvaluationStore]:
    engine = make_engine(parse_url(database_url))
    yield EvaluationStore(make_sessions(engine))
    await engine.dispose()


async def _made(store: EvaluationStore, **columns: Any) -> str:
    id = str(ULID())
    job = EvaluationJob(
        id=id, project="p", status="queued", request={"models": []}, total=1, done=0, judge={}, **columns
    )
    async with store._sessions.begin() as session:
        session.add(job)
    return id


async def test_who_comes_too_late_changes_nothing(store: EvaluationStore) -> None:
    id = await _made(store)
    first, second = [await store.claim(f"w{number}", 0.0, "here") for number in range(2)]  # a lease of 0 s lapses
    assert first is not None
    assert second is not None
    old, new = first[1], second[1]
    assert (old.epoch, new.epoch) == (1, 2)
    for late in (
        store.keep_rollout(old, {"id": "t"}),
        store.keep_verdicts(old, [], []),
        store.renew(old, 60.0, None),
    ):
        with pytest.raises(EvaluationLost):
            await late
    await store.release(old)
    await store.finish(old, EvaluationStatus.FAILED, error="late")
    assert await store.renew(new, 60.0, "a backend") is False
    found = await store.get(id)
    assert (found.status, found.error, found.wait_reason, found.epoch) == ("running", None, "a backend", 2)
    assert await store.claim("w3", 60.0, "here") is None
    await store.cancel(id, "local")
    assert await store.renew(new, 60.0, None) is True
    await store.release(new)  # the worker stops before it heard of it
    claimed = await store.claim("w4", 60.0, "here")
    assert claimed is not None
    assert await store.renew(claimed[1], 60.0, None) is True


async def test_only_a_worker_that_reaches_its_engine_takes_it(store: EvaluationStore) -> None:
    await _made(store, engine="there")
    assert await store.claim("w", 60.0, "here") is None
    assert await store.claim("w", 60.0, "there") is not None


async def test_one_that_kills_its_workers_is_given_up_and_the_next_one_taken(store: EvaluationStore) -> None:
    poison = await _made(store)
    for number in range(MAX_CLAIMS):
        assert await store.claim(f"w{number}", 0.0, "here") is not None
    other = await _made(store)
    claimed = await store.claim("w", 60.0, "here")
    assert claimed is not None
    assert claimed[0].id == other
    found = await store.get(poison)
    assert (found.status, "given up" in (found.error or "")) == ("failed", True)
    assert await store.resume(poison, "local") == "queued"


async def test_what_judging_cost_is_added_up(store: EvaluationStore) -> None:
    id = await _made(store)
    claimed = await store.claim("w", 60.0, "here")
    assert claimed is not None
    call = JudgeCall("correctness", "m", 10, 2, 0.5, 1, 0.1)
    await store.keep_verdicts(claimed[1], [], [call, call])
    await store.keep_verdicts(claimed[1], [], [call])
    assert (await store.get(id)).judge == {"requests": 3, "prompt_tokens": 30, "completion_tokens": 6, "usd": 1.5}
    await store.keep_verdicts(claimed[1], [], [JudgeCall("correctness", "m", 1, 1, None, 1, 0.1)])
    assert (await store.get(id)).judge["usd"] is None


async def test_leases_of_a_dead_worker_end(store: EvaluationStore) -> None:
    await _made(store)
    await store.claim("dead", 600.0, "here")
    assert await store.claim("next", 600.0, "here") is None
    await store.expire("dead")
    assert await store.claim("next", 600.0, "here") is not None
