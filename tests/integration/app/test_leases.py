"""Leases: one worker at a time drives a run or an evaluation, and one that has lost its lease writes nothing."""

import asyncio
import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event, func, select, text

from learnloop_service.app.claims.claims import MAX_CLAIMS, Claims
from learnloop_service.app.claims.heartbeat import Heartbeat
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database, parse_url
from learnloop_service.app.db.tables import EvaluationJob, Journal, Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs.claims import Limits
from learnloop_service.app.runs.queue_position import queue_position
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.app.worker.save_iteration import iteration_rows, save_iteration
from learnloop_service.training.backends.base import ModelSpec
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedPolicy, scripted_result
from tests.integration.app.leased_work import Evaluations, Kind, Runs, claimed, events, kind, lapse, queued, worker

__all__ = ["kind"]


async def test_many_workers_claim_each_row_once_and_the_oldest_first(kind: Kind) -> None:
    ids = [await kind.queue() for _ in range(12)]
    claimed_ids: list[str] = []

    async def claim_all(claims: Claims[Any]) -> None:
        while (lease_and_row := await claims.claim()) is not None:
            claimed_ids.append(lease_and_row[0].id)

    await asyncio.gather(*(claim_all(kind.worker(f"w{number}")) for number in range(4)))
    assert sorted(claimed_ids) == claimed_ids == ids


async def test_projects_take_turns(kind: Kind) -> None:
    many = [await kind.queue("many") for _ in range(6)]
    single, pair = await kind.queue("single"), [await kind.queue("pair") for _ in range(2)]
    claims = kind.worker("w")
    assert [(await claimed(claims)).id for _ in range(9)] == [
        many[0],
        single,
        pair[0],
        many[1],
        pair[1],
        *many[2:],
    ]


async def test_a_project_with_less_in_progress_goes_first_even_if_it_was_served_last(kind: Kind) -> None:
    busy = [await kind.queue("busy") for _ in range(2)]
    quick = [await kind.queue("quick") for _ in range(2)]
    claims = kind.worker("w")
    assert (await claimed(claims)).id == busy[0]
    lease = await claimed(claims)
    assert lease.id == quick[0]
    await kind.end(lease)
    assert (await claimed(claims)).id == quick[1]


async def test_with_one_place_the_project_that_waited_longest_is_next(kind: Kind) -> None:
    """None is in progress when the next one is claimed, so the number in progress does not decide."""
    many, single = [await kind.queue("many") for _ in range(3)], await kind.queue("single")
    claims, claimed_ids = kind.worker("w"), []
    for _ in range(4):
        lease = await claimed(claims)
        claimed_ids.append(lease.id)
        await kind.end(lease)
    assert claimed_ids == [many[0], single, *many[1:]]


async def test_the_position_in_the_queue_is_the_order_of_claims(database: Database) -> None:
    runs, claims = Runs(database), worker(database, "w")
    for project in ("a", "c", "a"):  # a has two in progress, c has one
        await runs.queue(project)
        await claimed(claims)
    ended = await runs.queue("d")
    await runs.end(await claimed(claims))
    ids = [await runs.queue(project) for project in "aabbbbcccdde"]
    positions = {}
    for id in ids:
        position = await queue_position(database, await runs.get(id), Limits())
        assert position is not None
        positions[position.position] = id
    assert [positions[number] for number in range(len(ids))] == [(await claimed(claims)).id for _ in ids]
    assert await queue_position(database, await runs.get(ended), Limits()) is None


async def test_work_whose_worker_is_gone_goes_first(kind: Kind) -> None:
    lost = await kind.queue("busy")
    await claimed(kind.worker("dead"))
    await kind.queue("new")
    await lapse(kind.database, lost, kind.table)
    assert (await claimed(kind.worker("w"))).id == lost


async def test_a_lease_that_lapsed_goes_to_another_with_a_higher_epoch(kind: Kind) -> None:
    id = await kind.queue()
    before = await kind.log(id)
    first, second = kind.worker("first"), kind.worker("second")
    old = await claimed(first)
    assert await second.claim() is None
    await lapse(kind.database, id, kind.table)
    new = await claimed(second)
    assert (new.id, new.epoch) == (id, old.epoch + 1)
    for late in kind.refused(old):
        with pytest.raises(LeaseLost):
            await late
    await kind.end(old)
    await first.release(old)
    row = await kind.get(id)
    assert (row.status, row.owner, row.error, row.wait_reason) == ("running", "second", None, None)
    started = f"{kind.noun}.started"
    assert await kind.log(id) == [*before, *((len(before) + number, started) for number in (1, 2))]


async def test_nothing_is_saved_after_the_end(kind: Kind) -> None:
    id = await kind.queue()
    lease = await claimed(kind.worker("w"))
    await kind.end(lease)
    log = await kind.log(id)
    for late in kind.refused(lease):
        with pytest.raises(LeaseLost):
            await late
    await kind.end(lease)
    assert (await kind.get(id)).error == "a zombie says so"
    assert await kind.log(id) == log


async def test_a_zombie_keeps_nothing_in_the_journal(database: Database) -> None:
    run_id = await queued(database)
    first, second = worker(database, "first"), worker(database, "second")
    home = asyncio.get_running_loop()
    lease_lost = asyncio.Event()
    old = StoredJournal(database, await claimed(first), home, lease_lost.set)
    await old.keep(1, "rollout/train/0", '{"of": "first"}')
    await lapse(database, run_id)
    new = StoredJournal(database, await claimed(second), home, lease_lost.set)
    with pytest.raises(LeaseLost):
        await old.keep(1, "train.intent", "{}")
    assert not lease_lost.is_set()
    old.keep_soon(1, "rollout/train/1", "{}")
    await asyncio.wait_for(lease_lost.wait(), 60)
    assert await new.kept(1) == {"rollout/train/0": '{"of": "first"}'}
    with pytest.raises(LeaseLost):  # of an iteration that was saved since, it would find nothing, and make it again
        await old.kept(1)


async def test_an_entry_is_kept_once_and_phases_are_told_once(database: Database) -> None:
    run_id = await queued(database)
    journal = StoredJournal(database, await claimed(worker(database, "w")), asyncio.get_running_loop(), lambda: None)
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
    assert [type for _, type in await events(database, run_id)].count("phase.completed") == 3
    async with database() as tx:
        assert (await tx.execute(select(func.count()).select_from(Journal))).scalar_one() == 5


async def test_an_iteration_is_saved_once_and_none_is_left_out(database: Database) -> None:
    run_id = await queued(database, iterations_total=3)
    lease = await claimed(worker(database, "w"))
    run = await RunStore(database).get(run_id)
    policy = ScriptedPolicy(ModelSpec("p", "m", "learnloop/tiny"), "http://127.0.0.1:9")
    rows = [iteration_rows(run, None, scripted_result(policy, n, n, 3, "so"), ()) for n in range(3)]
    await save_iteration(database, lease, rows[0])
    before = await RunStore(database).get(run_id)
    await save_iteration(database, lease, rows[0])  # the reply to the first was lost
    after = await RunStore(database).get(run_id)
    assert (after.rollouts, after.event_seq, after.next_iteration) == (before.rollouts, before.event_seq, 1)
    with pytest.raises(LeaseLost, match="iteration 2 is not the next one"):
        await save_iteration(database, lease, rows[2])
    await save_iteration(database, lease, rows[1])
    assert [type for _, type in await events(database, run_id)].count("iteration.completed") == 2


async def test_work_that_ends_its_workers_ends_alone(kind: Kind) -> None:
    poison = await kind.queue()
    other = await kind.queue()
    for attempt in range(MAX_CLAIMS):
        lease = await claimed(kind.worker(f"w{attempt}"))
        assert lease.id == poison, attempt
        await lapse(kind.database, poison, kind.table)
    assert (await claimed(kind.worker("w"))).id == other
    row = await kind.get(poison)
    assert row.status == "failed"
    assert row.error is not None
    assert row.error.startswith(f"given up: 5 workers took the {kind.noun}")
    assert (await kind.log(poison))[-1][1] == f"{kind.noun}.failed"


async def test_a_worker_that_lives_through_crashes_of_the_database_counts_once(kind: Kind) -> None:
    id = await kind.queue(claims=MAX_CLAIMS - 1)
    claims = kind.worker("w")
    epochs = []
    for _ in range(2 * MAX_CLAIMS):
        epochs.append((await claimed(claims)).epoch)
        await lapse(kind.database, id, kind.table)  # the database was down longer than a lease lasts
    assert epochs == sorted(set(epochs)), "each claim has a fencing token of its own"
    row = await kind.get(id)
    assert (row.status, row.claims) == ("running", MAX_CLAIMS)
    assert await kind.worker("another").claim() is None
    assert (await kind.get(id)).status == "failed"


async def test_progress_makes_earlier_losses_forgotten(kind: Kind) -> None:
    id = await kind.queue()
    claims = kind.worker("w")
    for number in range(2 * MAX_CLAIMS):
        await kind.save(await claimed(claims), number)
        await lapse(kind.database, id, kind.table)
    assert (await kind.get(id)).status == "running"


async def test_a_stop_in_good_order_hands_over_at_once_and_counts_for_nothing(kind: Kind) -> None:
    id = await kind.queue()
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        claims = kind.worker(name)
        lease = await claimed(claims)
        assert lease.id == id
        await claims.release(lease)
    assert (await kind.get(id)).status == "queued"


async def test_the_leases_of_a_dead_worker_end(kind: Kind) -> None:
    id = await kind.queue()
    dead, successor = kind.worker("dead"), kind.worker("successor")
    await claimed(dead)
    await successor.expire("another")
    assert await successor.claim() is None
    await successor.expire("dead")
    assert (await claimed(successor)).id == id


async def test_work_that_somebody_else_moves_is_not_claimed_meanwhile(kind: Kind) -> None:
    cancelled, free = await kind.queue(), await kind.queue()
    async with kind.database.begin() as tx:
        row = await tx.get_one(kind.table, cancelled, with_for_update={"key_share": True})
        row.status = RunStatus.CANCELLED
        await tx.flush()
        async with asyncio.timeout(60):
            assert (await claimed(kind.worker("w"))).id == free
            assert await kind.worker("w").claim() is None
    assert await kind.worker("w").claim() is None


async def test_no_worker_tells_the_database_its_own_time(database: Database) -> None:
    """A clock that is wrong, or jumps, changes neither leases nor their order."""
    all_parameters: list[Any] = []

    def note(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        all_parameters.extend(parameters.values() if isinstance(parameters, dict) else parameters)

    await queued(database)
    event.listen(database.kw["bind"].sync_engine, "before_cursor_execute", note)
    leases, store = worker(database, "w"), RunStore(database)
    lease = await claimed(leases)
    await store.heartbeat(lease, None)
    await StoredJournal(database, lease, asyncio.get_running_loop(), lambda: None).keep(0, "judge/train", "[]")
    policy = ScriptedPolicy(ModelSpec("p", "m", "learnloop/tiny"), "http://127.0.0.1:9")
    result = replace(scripted_result(policy, 0, 0, 3, "so"), evaluations=())  # a rollout tells when it began
    await save_iteration(database, lease, iteration_rows(await store.get(lease.id), None, result, ()))
    await leases.release(lease)
    lease = await claimed(leases)
    await store.finish(lease, RunStatus.COMPLETED)
    assert lease.id in all_parameters
    now = time.time()
    times = [
        parameter
        for parameter in all_parameters
        if isinstance(parameter, datetime) or (isinstance(parameter, float) and abs(parameter) > now / 2)
    ]
    assert times == []


async def test_limits_hold_over_all_workers(database: Database) -> None:
    for project in ("p", "p", "p", "q"):
        await queued(database, model_project=project)
    claims = await asyncio.gather(*(worker(database, f"w{n}", per_project=2).claim() for n in range(6)))
    projects = sorted(lease_and_run[0].model_project for lease_and_run in claims if lease_and_run is not None)
    assert projects == ["p", "p", "q"]
    one = worker(database, "x", per_backend=3)
    assert await one.claim() is None


async def test_a_worker_takes_only_what_it_can_drive(database: Database) -> None:
    await queued(database, backend="serverless")
    assert await worker(database, "w").claim() is None
    run_id = await queued(database)
    assert (await claimed(worker(database, "w"))).id == run_id
    assert (await RunStore(database).get(run_id)).engine == "here"


async def test_work_waits_for_a_worker_that_reaches_its_engine(kind: Kind) -> None:
    await kind.queue(engine="elsewhere")
    assert await kind.worker("w").claim() is None
    near = await kind.queue(engine="here")
    assert (await claimed(kind.worker("w"))).id == near


async def test_one_heartbeat_renews_both_kinds_and_tells_what_is_lost(database: Database, database_url: str) -> None:
    leases: list[Lease[Any]] = []
    stolen, renewed = set(), set()
    for work in (Runs(database), Evaluations(database)):
        ids = [await work.queue(), await work.queue()]
        leases += [await claimed(work.worker("w")), await claimed(work.worker("w"))]
        for id in ids:
            await lapse(database, id, work.table)
        stolen.add((await claimed(work.worker("thief"))).id)
        renewed |= {*ids} - stolen
    lost: set[str] = set()
    reported = threading.Event()

    def tell(lease: Lease[Any]) -> None:
        lost.add(lease.id)
        if lost >= stolen:
            reported.set()

    heartbeat = Heartbeat(parse_url(database_url), 3.0, lambda: leases, tell)
    heartbeat.start()
    assert await asyncio.to_thread(reported.wait, 10)
    heartbeat.close()
    assert lost == stolen
    async with database() as tx:
        for table in (Run, EvaluationJob):
            live = select(table.id).where(table.lease_until > func.clock_timestamp(), table.owner == "w")
            renewed -= set((await tx.execute(live)).scalars())
    assert renewed == set()


async def test_a_worker_that_freezes_while_it_renews_leaves_its_work_to_others(kind: Kind, database_url: str) -> None:
    await kind.queue()
    lease = await claimed(kind.worker("w"))
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
        async with kind.database.begin() as tx:
            await tx.execute(select(kind.table.id).with_for_update(nowait=True))
    finally:
        thawed.set()
        heartbeat.close()


async def test_without_the_database_the_work_stops_before_another_may_begin() -> None:
    lost: list[Lease[Any]] = []
    reported = threading.Event()
    nowhere = parse_url("postgresql://u:p@127.0.0.1:9/none")
    lease = Lease(Run, "run", 1, "w")

    def tell(lease: Lease[Any]) -> None:
        lost.append(lease)
        reported.set()

    heartbeat = Heartbeat(nowhere, 0.6, lambda: [lease], tell)
    heartbeat.start()
    assert await asyncio.to_thread(reported.wait, 60)
    heartbeat.close()
    assert set(lost) == {lease}


async def test_an_error_that_nobody_foresaw_does_not_end_the_heartbeat(kind: Kind, database_url: str) -> None:
    await kind.queue()
    lease = await claimed(kind.worker("w"))
    await lapse(kind.database, lease.id, kind.table)
    reported = threading.Event()
    heartbeat = Heartbeat(parse_url(database_url), 0.6, lambda: [lease], lambda _: reported.set())
    name = kind.table.__tablename__
    await _rename(kind.database, name, "away")
    heartbeat.start()
    assert await asyncio.to_thread(reported.wait, 60)  # it is not renewed, and the work stops in time
    await _rename(kind.database, "away", name)

    async def renewed() -> Any:
        async with kind.database() as tx:
            return await tx.scalar(select(kind.table.id).where(kind.table.lease_until > func.clock_timestamp()))

    assert await answered(renewed, bool) == lease.id
    heartbeat.close()


async def _rename(database: Database, old: str, new: str) -> None:
    async with database.begin() as tx:
        await tx.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
