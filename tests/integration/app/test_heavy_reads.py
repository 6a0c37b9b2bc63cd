"""Reads that cost much: of rollouts that say a lot, of many, and of the same thing again and again."""

import asyncio
import csv
import io
import json
import threading
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import URL

from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.api.stored_texts import StoredTexts
from learnloop_service.app.datasets import documents
from learnloop_service.app.db.database import Database, parse_url
from learnloop_service.app.results.tables import RolloutTable
from learnloop_service.app.service import open_service
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.emails import make_run, make_trajectory
from tests.integration.app.served import run_with, served, settings_for

LONG = "word " * 180_000
_SMALL = {"finish": "answered", "answer": "yes"}


async def test_a_table_of_long_rollouts_is_read_in_pieces(database: Database) -> None:
    run_id = await make_run(database)
    outcomes = [{"output": LONG, "number": number} for number in range(5)]
    outcomes[2:2] = [{"number": number} for number in range(100, 350)]
    for outcome in outcomes:
        await make_trajectory(database, run_id, outcome)
    table, pieces = RolloutTable(run_id), []
    while (piece := await table.next_piece(database)) is not None:
        pieces.append(piece)
    assert max(map(len, pieces)) < 2_000_000
    assert len(pieces) < 20, "small rollouts are read together"
    csv.field_size_limit(10_000_000)
    rows = list(csv.DictReader(io.StringIO(b"".join(pieces).decode())))
    assert [json.loads(row["outcome"]) for row in rows] == outcomes


async def test_lists_do_not_carry_what_is_long(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = await make_run(database)
        long_outcome = {"output": LONG, "finish": "reported", "list": [LONG], "number": 7, "many": {"a": 1}}
        long, small = [await make_trajectory(database, run_id, outcome) for outcome in (long_outcome, _SMALL)]
        page = (await client.get(f"/runs/{run_id}/trajectories")).raise_for_status()
        assert len(page.content) < 20_000
        first, second = page.json()["items"]
        assert (first["id"], second["id"]) == (long, small)
        assert second["outcome"] == _SMALL
        cut = first["outcome"]
        assert {name: cut[name] for name in ("finish", "number", "many")} == {
            "finish": "reported",
            "number": 7,
            "many": {"a": 1},
        }
        assert cut["output"] == LONG[:4_000] + "…"
        whole = (await client.get(f"/trajectories/{long}")).raise_for_status().json()
        assert whole["outcome"] == long_outcome


async def test_equal_reads_are_made_once(database_url: str) -> None:
    reads, read_count = HeavyReads(parse_url(database_url)), 0

    async def read(_: Database) -> int:
        nonlocal read_count
        read_count += 1
        return read_count

    assert await asyncio.gather(*(reads.cached("a", "key", read) for _ in range(20))) == [1] * 20
    assert await reads.cached("b", "key", read) == 1
    assert await reads.cached("b", "another state", read) == 2


async def test_a_read_that_fails_is_not_kept(database_url: str) -> None:
    reads, failing = HeavyReads(parse_url(database_url)), True

    async def read(_: Database) -> str:
        if failing:
            raise ValueError("not now")
        return "done"

    with pytest.raises(ValueError, match="not now"):
        await reads.cached("a", "key", read)
    failing = False
    assert await reads.cached("a", "key", read) == "done"


@pytest.mark.parametrize(
    "path", ["outcomes", "rewards", "film", "metrics", "log", "tables/rollouts", "trajectories?end=answered"]
)
async def test_a_heavy_read_waits_for_its_turn_and_nothing_else_does(
    data_dir: Path, database_url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, has_begun = threading.Event(), threading.Event()

    async def hold(_: Database) -> None:
        has_begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    opened: list[HeavyReads] = []

    class Noted(HeavyReads):
        def __init__(self, url: URL) -> None:
            super().__init__(url)
            opened.append(self)

    monkeypatch.setattr("learnloop_service.app.main.HeavyReads", Noted)
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1, "model": {"name": "a"}})).json()["run_id"]
        await run_with(client, run_id, "completed")
        holding = asyncio.create_task(opened[0].do("another", hold))
        await asyncio.to_thread(has_begun.wait)
        request_task = asyncio.create_task(client.get(f"/runs/{run_id}/{path}"))
        for _ in range(3):
            assert (await client.get(f"/runs/{run_id}")).status_code == 200
        assert not request_task.done()
        go_on.set()
        await holding
        assert (await request_task).status_code == 200


async def test_claims_go_on_while_requests_have_all_connections(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    async with (
        open_service(settings, connect=ScriptedBackend().connect, learn=ScriptedLoop()) as service,
        AsyncExitStack() as requests,
    ):
        for _ in range(7):
            await requests.enter_async_context(service.database_engine.connect())
        for kind in service.runner._kinds:
            assert await asyncio.wait_for(kind.claims.claim(), 5) is None


async def test_slow_readers_of_stored_sets_hold_one_of_them(database_url: str, database: Database) -> None:
    sets = [documents.document("mail", "scenarios", [{"id": f"{n}", "text": LONG * 4}]) for n in range(4)]
    async with database.begin() as tx:
        await documents.save(tx, sets)
    texts = StoredTexts(HeavyReads(parse_url(database_url)))
    hashes = [str(stored_set.reference["sha256"]) for stored_set in sets for _ in range(5)]
    readers = [await texts.parts(database, "mail", "scenarios", hash) for hash in hashes]
    tracemalloc.start()
    begun = [await anext(reader) for reader in readers]
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = len(sets[0].text)
    assert memory < 2 * size + sum(map(len, begun))
    rest = ["".join([part async for part in reader]) for reader in readers]
    read = [json.loads(first + more) for first, more in zip(begun, rest, strict=True)]
    assert read == [json.loads(stored_set.text) for stored_set in sets for _ in range(5)]
    with pytest.raises(documents.UnknownDocument):
        await texts.parts(database, "another", "scenarios", hashes[0])
