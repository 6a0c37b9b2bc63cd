"""Leases: one worker at a time drives a run, and whoever lost it writes nothing."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event, func, select, text, update
from ulid import ULID

from app.db.migration import migrate
from app.db.session import Sessions, make_engine, make_sessions, parse_url
from app.db.tables import Event, Journal, Run
from app.domain.run_state import RunStatus
from app.runs.leases import MAX_CLAIMS, Lease, LeaseLost, Leases, Limits
from app.runs.store import RunStore
from app.worker.heartbeat import Heartbeat
from app.worker.journal_store import StoredJournal
from app.worker.save_iteration import iteration_rows, save_iteration
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedPolicy, scripted_result
from tests.fakes.stored_request import stored_request
from training.backends.base import ModelSpec


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    engine = make_engine(parse_url(database_url))
    await migrate(engine)
    yield make_sessions(engine)
    await engine.dispose()


def worker(sessions: Sessions, name: str, **limits: Any) -> Leases:
    return Leases(sessions, name, ttl_s=30, limits=Limits(**limits), backends=["embedded"], engine="here")


async def queued(sessions: Sessions, **more: Any) -> str:
    run_id = str(ULID())
    row = {
        "status": RunStatus.QUEUED,
        "request": stored_request(),
        "environment": "email_search",
        "judge": "reference",
        "backend": "embedded",
        "model_project": "p",
        "model_name": run_id.lower(),
        "base_model": "learnloop/tiny",
        "iterations_total": 1,
    }
    await RunStore(sessions).create(Run(id=run_id, **(row | more)))
    return run_id


async def claimed(leases: Leases) -> Lease:
    found = await leases.claim()
    assert found is not None
    return found[1]


async def lapse(sessions: Sessions, run_id: str) -> None:
    async with sessions.begin() as session:
        past = func.clock_timestamp() - text("interval '1 second'")
        await session.execute(update(Run).where(Run.id == run_id).values(lease_until=past))


async def status_of(sessions: Sessions, run_id: str) -> str:
    return (await RunStore(sessions).get(run_id)).status


async def events(sessions: Sessions, run_id: str) -> list[tuple[int, str]]:
    async with sessions() as session:
        rows = await session.execute(select(Event.seq, Event.type).where(Event.run_id == run_id).order_by(Event.seq))
        return [(seq, type) for seq, type in rows]


async def test_many_workers_claim_each_run_once_and_the_oldest_first(sessions: Sessions) -> None:
    ids = [await queued(sessions) for _ in range(12)]
    workers = [worker(sessions, f"w{number}") for number in range(4)]
    taken: list[str] = []

    async def claim_all(leases: Leases) -> None:
        while (found := await leases.claim()) is not None:
            taken.append(found[0].id)

    await asyncio.gather(*map(claim_all, workers))
    assert sorted(taken) == taken == ids


async def test_a_lease_that_lapsed_goes_to_another_with_a_higher_epoch(sessions: Sessions) -> None:
    run_id = await queued(sessions)
    first, second = worker(sessions, "first"), worker(sessions, "second")
    old = await claimed(first)
    assert await second.claim() is None
    await lapse(sessions, run_id)
    new = await claimed(second)
    assert (new.run_id, new.epoch) == (run_id, old.epoch + 1)
    store = RunStore(sessions)
    with pytest.raises(LeaseLost):
        await store.heartbeat(old, None)
    await store.finish(old, RunStatus.FAILED, error="a zombie says so")
    await store.suspend(old, "a zombie says so")
    await first.release(old)
    run = await store.get(run_id)
    assert (run.status, run.owner, run.error) == ("running", "second", None)
    assert await events(sessions, run_id) == [(1, "run.created"), (2, "run.started"), (3, "run.started")]


async def test_a_zombie_keeps_nothing_in_the_journal(sessions: Sessions) -> None:
    run_id = await queued(sessions)
    first, second = worker(sessions, "first"), worker(sessions, "second")
    home = asyncio.get_running_loop()
    told = asyncio.Event()
    old = StoredJournal(sessions, await claimed(first), home, told.set)
    await old.keep(1, "rollout/train/0", '{"of": "first"}')
    await lapse(sessions, run_id)
    new = StoredJournal(sessions, await claimed(second), home, told.set)
    with pytest.raises(LeaseLost):
        await old.keep(1, "train.intent", "{}")
    assert not told.is_set()
    old.keep_soon(1, "rollout/train/1", "{}")
    await asyncio.wait_for(told.wait(), 60)
    assert await new.kept(1) == {"rollout/train/0": '{"of": "first"}'}
    with pytest.raises(LeaseLost):  # of an iteration that was saved since, it would find nothing, and make it again
        await old.kept(1)


async def test_an_entry_is_kept_once_and_phases_are_told_once(sessions: Sessions) -> None:
    run_id = await queued(sessions)
    journal = StoredJournal(sessions, await claimed(worker(sessions, "w")), asyncio.get_running_loop(), lambda: None)
    for _ in range(2):  # the reply to the first was lost
        await journal.keep(1, "judge/train", "[]")
        await journal.keep(1, "train", '{"step": 1}')
    journal.keep_soon(1, "rollout/train/0", "one")
    journal.keep_soon(1, "rollout/train/1", "two")
    await journal.keep(2, "train.intent", "{}")
    assert await journal.kept(1) == {
        "judge/train": "[]",
        "train": '{"step": 1}',
        "rollout/train/0": "one",
        "rollout/train/1": "two",
    }
    assert [type for _, type in await events(sessions, run_id)].count("phase.completed") == 3
    async with sessions() as session:
        assert (await session.execute(select(func.count()).select_from(Journal))).scalar_one() == 5


async def test_an_iteration_is_saved_once_and_none_is_left_out(sessions: Sessions) -> None:
    run_id = await queued(sessions, iterations_total=3)
    lease = await claimed(worker(sessions, "w"))
    run = await RunStore(sessions).get(run_id)
    policy = ScriptedPolicy(ModelSpec("p", "m", "learnloop/tiny"), "http://127.0.0.1:9")
    rows = [iteration_rows(run, scripted_result(policy, n, n, 3, "so"), ()) for n in range(3)]
    await save_iteration(sessions, lease, rows[0])
    before = await RunStore(sessions).get(run_id)
    await save_iteration(sessions, lease, rows[0])  # the reply to the first was lost
    after = await RunStore(sessions).get(run_id)
    assert (after.rollouts, after.event_seq, after.next_iteration) == (before.rollouts, before.event_seq, 1)
    with pytest.raises(LeaseLost, match="iteration 2 is not the next one"):
        await save_iteration(sessions, lease, rows[2])
    await save_iteration(sessions, lease, rows[1])
    assert [type for _, type in await events(sessions, run_id)].count("iteration.completed") == 2


async def test_a_run_that_ends_its_workers_ends_alone(sessions: Sessions) -> None:
    poison = await queued(sessions)
    other = await queued(sessions)
    leases = worker(sessions, "w")
    for attempt in range(MAX_CLAIMS):
        lease = await claimed(leases)
        assert lease.run_id == poison, attempt
        await lapse(sessions, poison)
    assert (await claimed(leases)).run_id == other
    run = await RunStore(sessions).get(poison)
    assert run.status == "failed"
    assert run.error is not None
    assert run.error.startswith("given up: 5 workers took the run")


async def test_progress_makes_earlier_losses_forgotten(sessions: Sessions) -> None:
    run_id = await queued(sessions)
    leases = worker(sessions, "w")
    for number in range(2 * MAX_CLAIMS):
        lease = await claimed(leases)
        journal = StoredJournal(sessions, lease, asyncio.get_running_loop(), lambda: None)
        await journal.keep(0, f"rollout/test.greedy/{number}", "{}")
        await lapse(sessions, run_id)
    assert await status_of(sessions, run_id) == "running"


async def test_a_stop_in_good_order_hands_over_at_once_and_counts_for_nothing(sessions: Sessions) -> None:
    run_id = await queued(sessions)
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        leases = worker(sessions, name)
        lease = await claimed(leases)
        assert lease.run_id == run_id
        await leases.release(lease)
    assert await status_of(sessions, run_id) == "queued"


async def test_a_run_that_somebody_else_moves_is_not_claimed_meanwhile(sessions: Sessions) -> None:
    cancelled, free = await queued(sessions), await queued(sessions)
    async with sessions.begin() as session:
        run = await session.get_one(Run, cancelled, with_for_update={"key_share": True})
        run.status = RunStatus.CANCELLED
        await session.flush()
        async with asyncio.timeout(60):
            assert (await claimed(worker(sessions, "w"))).run_id == free
            assert await worker(sessions, "w").claim() is None
    assert await worker(sessions, "w").claim() is None


async def test_no_worker_tells_the_database_its_own_time(sessions: Sessions) -> None:
    """So that a clock that is wrong, or jumps, changes neither leases nor their order."""
    sent: list[Any] = []

    def note(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        sent.extend(parameters.values() if isinstance(parameters, dict) else parameters)

    await queued(sessions)
    event.listen(sessions.kw["bind"].sync_engine, "before_cursor_execute", note)
    leases, store = worker(sessions, "w"), RunStore(sessions)
    lease = await claimed(leases)
    await store.heartbeat(lease, None)
    await StoredJournal(sessions, lease, asyncio.get_running_loop(), lambda: None).keep(0, "judge/train", "[]")
    policy = ScriptedPolicy(ModelSpec("p", "m", "learnloop/tiny"), "http://127.0.0.1:9")
    result = replace(scripted_result(policy, 0, 0, 3, "so"), evaluations=())  # a rollout tells when it began
    await save_iteration(sessions, lease, iteration_rows(await store.get(lease.run_id), result, ()))
    await leases.release(lease)
    lease = await claimed(leases)
    await store.finish(lease, RunStatus.COMPLETED)
    assert lease.run_id in sent
    now = time.time()
    times = [each for each in sent if isinstance(each, datetime) or (isinstance(each, float) and abs(each) > now / 2)]
    assert times == []


async def test_limits_hold_over_all_workers(sessions: Sessions) -> None:
    for project in ("p", "p", "p", "q"):
        await queued(sessions, model_project=project)
    found = await asyncio.gather(*(worker(sessions, f"w{n}", per_project=2).claim() for n in range(6)))
    projects = sorted(each[0].model_project for each in found if each is not None)
    assert projects == ["p", "p", "q"]
    one = worker(sessions, "x", per_backend=3)
    assert await one.claim() is None


async def test_a_worker_takes_only_what_it_can_drive(sessions: Sessions) -> None:
    await queued(sessions, backend="serverless")
    assert await worker(sessions, "w").claim() is None
    run_id = await queued(sessions, engine="elsewhere")
    assert await worker(sessions, "w").claim() is None
    async with sessions.begin() as session:
        await session.execute(update(Run).where(Run.id == run_id).values(engine=None))
    assert (await claimed(worker(sessions, "w"))).run_id == run_id
    assert (await RunStore(sessions).get(run_id)).engine == "here"


async def test_the_heartbeat_renews_and_tells_what_is_lost(sessions: Sessions, database_url: str) -> None:
    kept, taken = await queued(sessions), await queued(sessions)
    leases = worker(sessions, "w")
    held = [await claimed(leases), await claimed(leases)]
    for run_id in (kept, taken):
        await lapse(sessions, run_id)
    await claimed(worker(sessions, "thief"))  # the older one: `kept` is its loss
    lost: list[Lease] = []
    told = threading.Event()

    def tell(lease: Lease) -> None:
        lost.append(lease)
        told.set()

    heartbeat = Heartbeat(parse_url(database_url), 3.0, lambda: held, tell)
    heartbeat.start()
    assert await asyncio.to_thread(told.wait, 10)
    heartbeat.close()
    assert {lease.run_id for lease in lost} == {kept}
    async with sessions() as session:
        live = select(Run.id).where(Run.id == taken, Run.lease_until > func.clock_timestamp(), Run.owner == "w")
        assert (await session.execute(live)).scalar_one() == taken


async def test_a_worker_that_freezes_while_it_renews_leaves_the_run_to_others(
    sessions: Sessions, database_url: str
) -> None:
    await queued(sessions)
    lease = await claimed(worker(sessions, "w"))
    heartbeat = Heartbeat(parse_url(database_url), 0.6, lambda: [lease], lambda _: None)
    frozen, thawed = threading.Event(), threading.Event()

    @event.listens_for(heartbeat._engine, "after_cursor_execute")
    def freeze(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE"):
            frozen.set()
            thawed.wait(60)

    heartbeat.start()
    try:
        assert await asyncio.to_thread(frozen.wait, 60)
        async with sessions.begin() as session:
            await session.execute(select(Run.id).with_for_update(nowait=True))
    finally:
        thawed.set()
        heartbeat.close()


async def test_without_the_database_the_work_stops_before_another_may_begin() -> None:
    lost: list[Lease] = []
    told = threading.Event()
    nowhere = parse_url("postgresql://u:p@127.0.0.1:9/none")
    lease = Lease("run", 1, "w")

    def tell(lease: Lease) -> None:
        lost.append(lease)
        told.set()

    heartbeat = Heartbeat(nowhere, 0.6, lambda: [lease], tell)
    heartbeat.start()
    assert await asyncio.to_thread(told.wait, 60)
    heartbeat.close()
    assert set(lost) == {lease}


async def test_an_error_that_nobody_foresaw_does_not_end_the_heartbeat(sessions: Sessions, database_url: str) -> None:
    await queued(sessions)
    leases = worker(sessions, "w")
    lease = await claimed(leases)
    await lapse(sessions, lease.run_id)
    told = threading.Event()
    heartbeat = Heartbeat(parse_url(database_url), 0.6, lambda: [lease], lambda _: told.set())
    await _rename(sessions, "run", "away")
    heartbeat.start()
    assert await asyncio.to_thread(told.wait, 60)  # it is not renewed, and the work stops in time
    await _rename(sessions, "away", "run")

    async def renewed() -> Any:
        async with sessions() as session:
            return await session.scalar(select(Run.id).where(Run.lease_until > func.clock_timestamp()))

    assert await answered(renewed, bool) == lease.run_id
    heartbeat.close()


async def _rename(sessions: Sessions, old: str, new: str) -> None:
    async with sessions.begin() as session:
        await session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
