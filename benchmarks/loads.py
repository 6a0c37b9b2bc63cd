"""Measure what one client, or one lost connection, costs everybody else.

    python -m benchmarks.loads forgotten tables sets outcomes

`forgotten`: a service trains on an engine behind a network that forgets all connections in the middle of a run. Prints
the seconds until the run progresses, and what the run said meanwhile.

The others send requests of one tenant, and print the waits of another one's `GET /health/live` and `GET /runs/{id}`,
and the service's memory. `tables`: twenty readers of the rollouts of a run with 500 of them, each with 0.9 MB of
outcome. `sets`: sixty clients that ask for a stored set of 24 MB, and do not read. `outcomes`: twenty readers of the
outcomes of a run with 64,000 rollouts.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
from sqlalchemy import text

from app.cli.client import Service
from app.cli.service_process import free_port
from app.db.database import Database, make_database, make_engine
from app.db.migration import migrate
from app.db.tables import Trajectory
from app.processes.postgres import EmbeddedPostgres
from app.runs import documents
from benchmarks import processes
from benchmarks.service.hostile_http import Memory, Stage, ask_meanwhile, prepared
from environment.json_type import Json
from tests.fakes.forgetful_network import forgetful_network

_MOST_S = 420.0
_READ_S = 60.0
"""How long the readers of a load read; then they leave."""
_LEARN_LOOP: Json = {
    "environment": {"name": "email_search"},
    "iterations": 3,
    "groups_per_iteration": 4,
    "rollouts_per_group": 4,
    "evaluation": {"every": 100, "scenarios": 4},
}


async def forgotten(directory: Path) -> Json:
    """Forget the connections between a service and its engine in the middle of an iteration's rollouts."""
    port = free_port()
    (directory / "engine").mkdir()
    with processes.engine(directory / "engine") as engine_url:
        engine_port = httpx.URL(engine_url).port
        assert engine_port
        async with (
            forgetful_network(engine_port) as network,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http,
        ):
            with processes.service(directory, port, LEARNLOOP_ENGINE_URL=network.url) as child:
                with Service(f"http://127.0.0.1:{port}") as client:
                    await asyncio.to_thread(_wait_for, child, client)
                run = f"/runs/{(await http.post('/learn-loop', json=_LEARN_LOOP)).raise_for_status().json()['run_id']}"
                await _until(http, run, lambda said: said["progress"] and said["progress"]["iteration"] == 1)
                before = (await http.get(run)).json()["progress"]
                network.forget()
                began, carried = time.monotonic(), network.carried
                said = await _until(
                    http,
                    run,
                    lambda said: (
                        (said["progress"] != before and network.carried - carried > 20_000)
                        or said["status"] in ("failed", "completed")
                    ),
                )
                return {
                    "seconds": round(time.monotonic() - began, 1),
                    "status": said["status"],
                    "error": said["error"],
                    "from": before,
                    "to": said["progress"],
                }


def _wait_for(child: "subprocess.Popen[bytes]", client: Service) -> None:
    processes.wait_for(child, processes.answers(client), most_s=_MOST_S)


async def _until(http: httpx.AsyncClient, path: str, holds: Callable[[Json], object]) -> Json:
    async with asyncio.timeout(_MOST_S):
        while not holds(said := (await http.get(path)).json()):
            await asyncio.sleep(0.2)
        return said


@asynccontextmanager
async def _stage(directory: Path) -> AsyncIterator[tuple[Stage, Database, int, int]]:
    """Run a service over a database with two projects: the stage, the database, the port and the service's pid."""
    postgres, port = EmbeddedPostgres(directory), free_port()
    await postgres.start()
    engine = make_engine(postgres.url)
    try:
        await migrate(engine)
        stage = await prepared(make_database(engine))
        settings = processes.database_only(postgres.url)
        (directory / "data").mkdir()
        with processes.service(directory / "data", port, **settings) as child:
            with Service(f"http://127.0.0.1:{port}") as client:
                await asyncio.to_thread(_wait_for, child, client)
            await asyncio.sleep(3)  # wait for the service's late imports
            yield stage, make_database(engine), port, child.pid
    finally:
        await engine.dispose()
        await postgres.stop()


async def _beside(stage: Stage, port: int, pid: int, load: Callable[[], Awaitable[Json]]) -> Json:
    """Run the load; return another tenant's waits and the service's memory."""
    memory, over = Memory(psutil.Process(pid)), asyncio.Event()
    before = memory.now_mb()
    asked = (("/health/live", None), (f"/runs/{stage.bystander_run}", stage.bystander_key))
    asking = [asyncio.create_task(ask_meanwhile(port, path, key, over)) for path, key in asked]
    began = time.monotonic()
    found = await load()
    seconds = time.monotonic() - began
    over.set()
    live, runs = [(await waits).figures() for waits in asking]
    grew = round(memory.stop() - before)
    return {"seconds": round(seconds, 1), "live": live, "runs": runs, "grew_mb": grew, **found}


async def _read(port: int, path: str, key: str, times: int) -> Json:
    """Read the path that many times simultaneously, for at most a minute."""
    received = 0

    async def one() -> str:
        nonlocal received
        try:
            async with (
                asyncio.timeout(_READ_S),
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as http,
                http.stream("GET", path, headers={"authorization": f"Bearer {key}"}) as reply,
            ):
                async for part in reply.aiter_raw():
                    received += len(part)
                return str(reply.status_code)
        except TimeoutError:
            return "left"

    endings = Counter(await asyncio.gather(*(one() for _ in range(times))))
    return {"endings": dict(endings), "received_mb": round(received / 1e6)}


async def tables(directory: Path) -> Json:
    async with _stage(directory) as (stage, database, port, pid):
        words = "".join(random.choices("abcdefgh ", k=900_000))
        long = f"jsonb_build_object('output', '{words}', 'number', g)"
        await _add_rollouts(database, stage.run_id, 500, long)
        path = f"/runs/{stage.run_id}/tables/rollouts"
        return await _beside(stage, port, pid, lambda: _read(port, path, stage.key, 20))


async def outcomes(directory: Path) -> Json:
    async with _stage(directory) as (stage, database, port, pid):
        await _add_rollouts(database, stage.run_id, 64_000, "jsonb_build_object('finish', 'answered', 'number', g)")
        path = f"/runs/{stage.run_id}/outcomes"
        return await _beside(stage, port, pid, lambda: _read(port, path, stage.key, 20))


async def sets(directory: Path) -> Json:
    async with _stage(directory) as (stage, database, port, pid):
        new = documents.document("hostile", "scenarios", [{"id": str(n), "text": "word " * 200} for n in range(23_000)])
        async with database.begin() as tx:
            await documents.save(tx, [new])

        async def unread() -> Json:
            head = f"GET /scenarios/{new.reference['sha256']} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stage.key}"
            writers = []
            for _ in range(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
                writer.write(f"{head}\r\n\r\n".encode())
                writers.append((reader, writer))
            await asyncio.sleep(20)
            for _, writer in writers:
                writer.close()
            return {}

        return await _beside(stage, port, pid, unread)


async def _add_rollouts(database: Database, run_id: str, count: int, outcome: str) -> None:
    """Copy a rollout of the run that many times, with another outcome."""
    async with database.begin() as tx:
        await tx.execute(text("SET LOCAL statement_timeout = 0"))
        copied = [each.name for each in Trajectory.__table__.columns if each.name not in ("id", "seq", "outcome")]
        names = ", ".join(copied)
        await tx.execute(
            text(
                f"INSERT INTO trajectory (id, outcome, {names}) SELECT 'copy-' || g, {outcome}, {names} FROM "
                f"(SELECT * FROM trajectory WHERE run_id = :run_id LIMIT 1), generate_series(1, :count) AS g"
            ),
            {"run_id": run_id, "count": count},
        )


LOADS = {each.__name__: each for each in (forgotten, tables, sets, outcomes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", metavar="NAME", nargs="+", choices=list(LOADS), help=", ".join(LOADS))
    for name in parser.parse_args().loads:
        with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
            machine = processes.machine()
            found = asyncio.run(LOADS[name](Path(directory)))
        sys.stdout.write(json.dumps({"load": name, **machine, **found}) + "\n")


if __name__ == "__main__":
    main()
