"""Between two events the stream tells how far a run is: bounded, in no log, and in nobody's way."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, update

from learnloop_service.app.db.database import parse_url
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.events.feed import LOOK_S, EventFeed
from learnloop_service.app.events.progress import positions_of
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.webhook_stage import stage


class BusyLoop(ScriptedLoop):
    """Tells of progress all the time: far more often than anybody is told of it."""

    told = 0

    async def __call__(
        self, *args: Any, progress: Callable[[IterationProgress], None], **more: Any
    ) -> AsyncGenerator[IterationResult, None]:
        over = threading.Event()
        busy = threading.Thread(target=self._tell, args=(progress, over))
        busy.start()
        try:
            async for result in super().__call__(*args, progress=lambda _: None, **more):
                yield result
        finally:
            over.set()
            busy.join()

    def _tell(self, progress: Callable[[IterationProgress], None], over: threading.Event) -> None:
        while not over.wait(0.001):
            self.told += 1
            progress(IterationProgress(0, Phase.ROLLOUT, self.told, 1_000_000))


@asynccontextmanager
async def two_services(
    data_dir: Path, database_url: str, learn: ScriptedLoop
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """The first one drives runs, the second one only answers."""
    drives = settings_for(data_dir / "one", database_url)
    answers = settings_for(data_dir / "two", database_url, max_concurrent_runs=0)
    async with served(drives, learn) as one, served(answers, ScriptedLoop()) as two:
        yield [one, two]


async def messages(client: httpx.AsyncClient, path: str, last: int | None = None) -> AsyncIterator[dict[str, str]]:
    """The stream's messages by their fields, until it ends."""
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": str(last)})
    async with client.stream("GET", path, headers=headers, timeout=httpx.Timeout(60)) as response:
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields
                fields = {}


async def test_watchers_of_any_replica_are_told_and_nothing_of_it_is_kept(data_dir: Path, database_url: str) -> None:
    gate = threading.Event()
    learn = BusyLoop(gates={0: gate})
    async with two_services(data_dir, database_url, learn) as clients:
        run_id = (await clients[0].post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        path = f"/runs/{run_id}/events"

        async def watch(client: httpx.AsyncClient) -> tuple[list[dict[str, str]], float]:
            notices: list[dict[str, str]] = []
            started = time.monotonic()
            async for message in messages(client, path):
                notices.append(message)
                if sum(notice["event"] == "progress" for notice in notices) == 3:
                    gate.set()
            return notices, time.monotonic() - started

        watched = await asyncio.gather(*map(watch, clients))
        event_rows = (await clients[1].get(path, params={"limit": 200})).json()["items"]
    for notices, seconds in watched:
        positions = [json.loads(notice["data"]) for notice in notices if notice["event"] == "progress"]
        assert not any("id" in notice for notice in notices if notice["event"] == "progress")
        assert 1 <= len(positions) <= seconds / LOOK_S + 1 < learn.told  # what bounds it is the look, once a LOOK_S
        assert positions[0].keys() == {"run_id", "iteration", "phase", "done", "total", "failures"}
        assert (positions[0]["run_id"], positions[0]["phase"], positions[0]["total"]) == (run_id, "rollout", 1_000_000)
        counts = [position["done"] for position in positions]
        assert counts == sorted(set(counts))
        events = [int(notice["id"]) for notice in notices if notice["event"] != "progress"]
        assert events == [event["seq"] for event in event_rows] == [*range(1, len(event_rows) + 1)]
    assert "progress" not in {event["type"] for event in event_rows}


async def test_who_comes_back_after_progress_goes_on_after_the_last_event(data_dir: Path, database_url: str) -> None:
    gate = threading.Event()
    async with two_services(data_dir, database_url, ScriptedLoop(gates={0: gate})) as [one, two]:
        run_id = (await one.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        path = f"/runs/{run_id}/events"
        last = 0
        async for message in messages(two, path):
            if message["event"] == "progress":
                break
            last = int(message["id"])
        gate.set()
        rest = [message async for message in messages(one, path, last)]
        await run_with(one, run_id, "completed")
    events = [int(message["id"]) for message in rest if message["event"] != "progress"]
    assert events == [*range(last + 1, last + 1 + len(events))]
    assert rest[-1]["event"] == "run.completed"


@pytest.mark.parametrize("status", RunStatus)
async def test_only_a_run_that_is_driven_makes_progress(database_url: str, status: RunStatus) -> None:
    figures = {"phase_iteration": 2, "phase": "judge", "phase_done": 7, "phase_total": 9}  # left by who drove it
    async with stage(database_url) as here:
        run_id = await here.run()
        async with here.database.begin() as tx:
            await tx.execute(update(Run).where(Run.id == run_id).values(status=status, event_seq=5, **figures))
        positions = await positions_of(here.database, [run_id, "nobody"])
    assert positions.keys() == {run_id}
    assert positions[run_id].event_seq == 5
    moved = positions[run_id].moved
    if status is RunStatus.RUNNING:
        assert moved is not None
        expected = {"run_id": run_id, "iteration": 2, "phase": "judge", "done": 7, "total": 9, "failures": None}
        assert json.loads(moved.document) == expected
    else:
        assert moved is None


async def test_a_stream_of_a_run_that_is_deleted_ends(database_url: str) -> None:
    """Also where the watcher came too late for its last event."""
    async with stage(database_url) as here:
        run_id = await here.run()
        last = await here.event(run_id, EventType.RUN_FAILED)
        feed = EventFeed(here.database, parse_url(database_url), lambda: None)
        feed.start()
        async with here.database.begin() as tx:
            await tx.execute(delete(Run).where(Run.id == run_id))
        async with asyncio.timeout(60):
            assert [batch async for batch in feed.watch(run_id, last) if batch] == []
        await feed.close()


async def test_a_service_that_stops_ends_its_streams(database_url: str) -> None:
    async with stage(database_url) as here:
        run_id = await here.run()
        last = await here.event(run_id)
        feed = EventFeed(here.database, parse_url(database_url), lambda: None)

        async def watch() -> list[object]:
            return [batch async for batch in feed.watch(run_id, last) if batch]

        watching = [asyncio.create_task(watch()) for _ in range(3)]
        await until(lambda: feed._tails[run_id].watchers == 3)
        feed.end()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*watching) == [[], [], []]


async def test_an_event_whose_hint_is_lost_is_seen_all_the_same(database_url: str) -> None:
    """The listener is not there at all: only the look finds it."""
    async with stage(database_url) as here:
        run_id = await here.run()
        last = await here.event(run_id)
        nowhere = parse_url(database_url).set(database="nowhere")
        feed = EventFeed(here.database, nowhere, lambda: None)
        feed.start()
        async with asyncio.timeout(60):
            waits = asyncio.create_task(anext(batch async for batch in feed.watch(run_id, last) if batch))
            await until(lambda: feed._tails[run_id].events)  # a look was there: the watcher waits
            await here.event(run_id)
            last_batch = await waits
        assert isinstance(last_batch, list)
        assert [event.seq for event in last_batch] == [last + 1]
        await feed.close()
