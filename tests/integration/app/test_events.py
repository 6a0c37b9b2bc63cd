"""The stream of events: complete and in order for every watcher, whatever is cut between the database and them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.durability.chaos_faults import cut_connections
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from learnloop_service.app.events.stream_limit import STREAMS_PER_KEY
from learnloop_service.app.runs.store import RunStore
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import keyed
from tests.integration.app.served import served, settings_for

_SUBSCRIBERS = 20
_EVENTS = 60
_ENDS = "event: run.cancelled"


async def one_stream(client: httpx.AsyncClient, path: str, numbers: list[int], enough: Callable[[], bool]) -> bool:
    """Read one stream into `numbers`, from the event after the last one; whether the run's end was seen."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": str(numbers[-1])} if numbers else {})
    patient = httpx.Timeout(60)
    async with client.stream("GET", path, headers=headers, timeout=patient) as response:
        if response.status_code == 204:
            return True
        if response.status_code == 503:  # its database connections were cut just now
            return False
        assert response.status_code == 200
        over = False
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                numbers.append(int(line[4:]))
            over |= line == _ENDS
            if not line and not over and enough():  # between two events: the client drops its connection
                return False
        return over


async def subscribe(clients: list[httpx.AsyncClient], path: str, rng: random.Random) -> tuple[list[int], int]:
    """Follow a run to its end, dropping the connection at random; what was seen, and over how many connections."""
    numbers: list[int] = []
    connections = 1
    while not await one_stream(rng.choice(clients), path, numbers, lambda: rng.random() < 0.03):
        connections += 1
    return numbers, connections


async def happen(database: Database, run_id: str, count: int) -> None:
    for number in range(count):
        async with database.begin() as tx:
            await append(tx, run_id, EventType.PHASE_COMPLETED, "test", {"phase": "rollout"}, iteration=number)


@pytest.mark.parametrize("seed", [1])
async def test_every_watcher_sees_every_event_once_whatever_is_cut(
    data_dir: Path, database_url: str, seed: int
) -> None:
    url = parse_url(database_url)
    engine = make_engine(url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        clients = [
            await stack.enter_async_context(
                served(settings_for(data_dir / name, database_url, max_concurrent_runs=0), ScriptedLoop())
            )
            for name in ("one", "two")
        ]
        run_id = (await clients[0].post("/learn-loop", json={})).json()["run_id"]
        path = f"/runs/{run_id}/events"
        async with asyncio.TaskGroup() as tasks:
            watchers = [
                tasks.create_task(subscribe(clients, path, random.Random(seed + n))) for n in range(_SUBSCRIBERS)
            ]
            database = make_database(engine)
            cuts = []
            for _ in range(4):
                await happen(database, run_id, _EVENTS // 4)
                cuts.append(await cut_connections(url, "LISTEN%"))
            await RunStore(database).cancel(run_id, "test")
        pages = (await clients[1].get(path, params={"limit": 200})).json()["items"]
    expected = [*range(1, _EVENTS + 3)]  # run.created before them, run.cancelled after
    assert [event["seq"] for event in pages] == expected
    assert [watcher.result()[0] for watcher in watchers] == [expected] * _SUBSCRIBERS, seed
    assert sum(watcher.result()[1] for watcher in watchers) > _SUBSCRIBERS  # clients did drop and come back
    assert cuts[0] == 2  # both instances listened, and lost it


async def test_a_stream_of_a_run_that_ended_ends_and_asks_nobody_back(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=0), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={})).json()["run_id"]
        await client.post(f"/runs/{run_id}/cancel")
        path, headers = f"/runs/{run_id}/events", {"accept": "text/event-stream"}
        whole = await client.get(path, headers=headers)
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert [line for line in whole.text.splitlines() if line.startswith(("id", "event"))] == [
            "id: 1",
            "event: run.created",
            "id: 2",
            "event: run.cancelled",
        ]
        rest = await client.get(path, headers=headers, params={"after": 1})
        assert "id: 1\n" not in rest.text
        assert "id: 2\n" in rest.text
        assert (await client.get(path, headers=headers | {"last-event-id": "2"})).status_code == 204
        assert (await client.get(path, headers=headers | {"last-event-id": "x"})).status_code == 422


@asynccontextmanager
async def _open(client: httpx.AsyncClient, path: str, key: dict[str, str]) -> AsyncIterator[httpx.Response]:
    """A stream whose first line was read."""
    async with client.stream("GET", path, headers=key | {"accept": "text/event-stream"}) as response:
        lines = response.aiter_lines()  # with its end the stream would end
        if response.status_code == 200:
            await anext(lines)
        yield response


async def test_a_key_has_so_many_streams_and_no_more(data_dir: Path, database_url: str) -> None:
    """S5 for streams: what is over the bound is refused at once, and takes nothing from other keys."""
    async with keyed(data_dir, database_url, max_concurrent_runs=0, rate_per_s=0) as service:
        greedy, modest = await service.headers(), await service.headers()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        run_id = (await service.client.post("/learn-loop", json={}, headers=greedy)).json()["run_id"]
        path = f"/runs/{run_id}/events"
        base_url = service.client.base_url
        async with httpx.AsyncClient(base_url=base_url, limits=limits, timeout=60, trust_env=False) as client:
            async with AsyncExitStack() as open_streams:
                for _ in range(STREAMS_PER_KEY):
                    stream = await open_streams.enter_async_context(_open(client, path, greedy))
                    assert stream.status_code == 200
                for _ in range(20):
                    async with _open(client, path, greedy) as refused:
                        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
                assert (await client.get(path, headers=greedy)).status_code == 200  # pages are no streams
                async with _open(client, path, modest) as stream:
                    assert stream.status_code == 200

            async def status() -> int:
                async with _open(client, path, greedy) as stream:
                    return stream.status_code

            await answered(status, lambda code: code == 200)  # those that hung up have left their places
