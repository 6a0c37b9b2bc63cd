"""Entries of the journal that were damaged in the database: dropped, said, and their work done again."""

import asyncio
import threading
import zlib
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select, text, update

from learnloop_service.app.db.database import Database, make_engine, parse_url
from learnloop_service.app.db.tables import Event, Journal
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.training.backends.base import ModelSpec, Policy, TrainRequest
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import until
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.integration.app.leased_work import claimed, queued, worker
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.talking_runs import RUN, talker

GARBLED = b"\x00garbled\xff"
ENTRIES = {"rollout/train/0": '{"id": "a"}', "rollout/train/1": '{"id": "b"}', "judge/train": "[]", "train": "{}"}


async def _journal(database: Database) -> tuple[StoredJournal, str]:
    run_id = await queued(database)
    lease = await claimed(worker(database, "w"))
    journal = StoredJournal(database, lease, asyncio.get_running_loop(), lambda: None)
    for name, value in ENTRIES.items():
        await journal.keep(1, name, value)
    return journal, run_id


async def _change(database: Database, entry: str, **values: Any) -> None:
    async with database.begin() as tx:
        await tx.execute(update(Journal).where(Journal.name == entry).values(**values))


async def _damages(database: Database, run_id: str) -> list[Any]:
    query = select(Event.data).where(Event.run_id == run_id, Event.type == "journal.damaged")
    async with database() as tx:
        return list((await tx.execute(query)).scalars())


@pytest.mark.parametrize(
    "value", [GARBLED, zlib.compress(b'{"id": "z"}'), zlib.compress(b"\xff\xfe")], ids=["bytes", "text", "encoding"]
)
async def test_an_entry_that_does_not_fit_is_dropped_and_said_once(database: Database, value: bytes) -> None:
    journal, run_id = await _journal(database)
    await _change(database, "judge/train", value=value)
    remaining = {name: value for name, value in ENTRIES.items() if name != "judge/train"}
    assert await journal.kept(1) == remaining
    assert await journal.kept(1) == remaining
    assert await _damages(database, run_id) == [{"damaged": ["judge/train"], "dropped": ["judge/train"]}]
    await journal.keep(1, "judge/train", "[1]")
    assert (await journal.kept(1))["judge/train"] == "[1]"


async def test_an_entry_in_another_ones_place_does_not_fit(database: Database) -> None:
    journal, _ = await _journal(database)
    await _change(database, "train", name="rollout/train/7")
    assert "rollout/train/7" not in await journal.kept(1)


async def test_an_entry_of_an_earlier_version_has_no_checksum_and_is_read(database: Database) -> None:
    journal, run_id = await _journal(database)
    for name in ENTRIES:
        await _change(database, name, checksum=None)
    assert await journal.kept(1) == ENTRIES
    await _change(database, "train", value=GARBLED)
    assert "train" not in await journal.kept(1)
    assert len(await _damages(database, run_id)) == 1


class _Gated(ScriptedBackend):
    """Its trainings take until the gate is opened, and then land although nobody waits for them any more."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate, self.asked = threading.Event(), 0

    async def register(self, model: ModelSpec) -> Policy:
        policy = cast(ScriptedPolicy, await super().register(model))
        submit = type(policy).submit

        async def waiting_submit(request: TrainRequest) -> str:
            self.asked += 1
            job = await submit(policy, request)
            await until(self.gate.is_set)
            return job

        policy.submit = waiting_submit  # type: ignore[method-assign]
        return policy


@pytest.mark.parametrize("damaged", ["rollout/train/%", "judge/train%", "train.intent%", "%"])
async def test_a_run_with_a_damaged_journal_is_completed_and_trains_once(
    data_dir: Path, database_url: str, damaged: str
) -> None:
    """It is stopped while it trains; what it then finds damaged is made again, but for the training, which landed."""
    settings = settings_for(data_dir, database_url)
    engine = make_engine(parse_url(database_url))
    async with scripted_chat(talker) as model:
        backend = _Gated(model.url)
        async with served(settings, cast(Any, learn_loop), backend) as client:
            run_id = (await client.post("/learn-loop", json=RUN | {"iterations": 1})).json()["run_id"]
            await until(lambda: backend.asked)
        async with engine.begin() as connection:
            garble = text("UPDATE journal SET value = :garbled WHERE name LIKE :damaged")
            updated = await connection.execute(garble, {"garbled": GARBLED, "damaged": damaged})
            assert updated.rowcount > 0
        backend.gate.set()
        async with served(settings, cast(Any, learn_loop), backend) as client:
            run = await run_with(client, run_id, "completed", "failed", "paused")
            assert (run["status"], run["error"]) == ("completed", None)
            assert [point["step"] for point in run["iterations"]] == [0, 1]
            events = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()["items"]
            assert [event["type"] for event in events].count("journal.damaged") == 1
    await engine.dispose()
    assert backend.asked == 1
