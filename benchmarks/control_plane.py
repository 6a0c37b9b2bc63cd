"""What the service can carry beside the learning itself: journal, requests, streams, memory.

    python -m benchmarks.control_plane [--rollouts 20000] [--seconds 10] [--clients 500] [--events 50] [--json]

(a) Finished rollouts of four runs are kept in the journal as fast as it takes them. (b) `GET /runs/{id}` over 16
connections while a service drives four runs with a scripted learn loop. (c) Clients that stream one run's events: the
time from the commit of an event until each of them has it. (d) How this process's memory grows during (a).
"""

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import delete
from ulid import ULID

from app.cli.client import Service
from app.cli.service_process import free_port
from app.db import Sessions, make_engine, make_sessions, migrate
from app.embedded_postgres import EmbeddedPostgres
from app.events import EventType, append
from app.models import Journal, Run
from app.runs.journal_store import StoredJournal
from app.runs.leases import Lease, Leases, Limits
from app.runs.state import RunStatus
from app.runs.store import RunStore
from benchmarks import processes
from benchmarks.service_under_load import load, trains

GOALS = {"rollouts_per_s": 1000.0, "requests_per_s": 500.0, "request_p99_ms": 50.0, "stream_p99_ms": 250.0}
_RUNS = 4
_CONNECTIONS = 16
_WARM_ITERATIONS = 4
_AN_ITERATION = 64
"""Rollouts."""
_VALUE = json.dumps(
    {"messages": ["a question and its answer"] * 20, "tokens": [*range(500)], "logprobs": [-0.25] * 500}
)


async def journal_figures(sessions: Sessions, rollouts: int) -> dict[str, Any]:
    """Rollouts kept a second by four runs together, and what it left in memory."""
    leases = Leases(sessions, "bench", ttl_s=3600, limits=Limits(), backends=["none"], engine="none")
    held = [await _claimed(sessions, leases) for _ in range(_RUNS)]
    process = psutil.Process()
    await _keep(sessions, held[0], 10 * _AN_ITERATION)  # caches fill
    gc.collect()
    before_mb = process.memory_info().rss / 1e6
    started = time.monotonic()
    await asyncio.gather(*(_keep(sessions, lease, rollouts // _RUNS) for lease in held))
    seconds = time.monotonic() - started
    gc.collect()
    for lease in held:
        await RunStore(sessions).finish(lease, RunStatus.FAILED, error="done")
    return {
        "rollouts": rollouts,
        "rollouts_per_s": round(rollouts / seconds, 1),
        "bytes_each": len(_VALUE),
        "growth_mb": round(process.memory_info().rss / 1e6 - before_mb, 1),
    }


async def _keep(sessions: Sessions, lease: Lease, rollouts: int) -> None:
    """Whole iterations: their rollouts in groups, the verdicts, and the journal emptied as a saved iteration does."""
    journal = StoredJournal(sessions, lease, asyncio.get_running_loop(), lambda: None)
    for iteration in range(rollouts // _AN_ITERATION):
        for number in range(_AN_ITERATION):
            journal.keep_soon(iteration, f"rollout/train/{number}", _VALUE)
        await journal.keep(iteration, "judge/train", "[]")
        async with sessions.begin() as session:
            await session.execute(delete(Journal).where(Journal.run_id == lease.run_id))


async def _claimed(sessions: Sessions, leases: Leases) -> Lease:
    await RunStore(sessions).create(_run("none"))
    claimed = await leases.claim()
    assert claimed is not None
    return claimed[1]


def _run(backend: str) -> Run:
    run_id = str(ULID())
    return Run(
        id=run_id,
        request={},
        environment="email_search",
        judge="reference",
        backend=backend,
        model_project="bench",
        model_name=run_id,
        base_model="none",
        iterations_total=1,
    )


@contextmanager
def service(directory: Path, database: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """The service with scripted runs, up and answering."""
    flags = [f"--database={database}", f"--data-dir={directory / 'service'}", f"--port={port}", f"--runs={_RUNS}"]
    with (directory / "service.log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "benchmarks.control_plane_service", *flags], stderr=log)
    try:
        with Service(f"http://127.0.0.1:{port}") as client:
            processes.wait_for(child, processes.answers(client))
        yield child
    finally:
        child.terminate()
        child.wait()


def request_figures(port: int, seconds: float) -> dict[str, Any]:
    """Requests for one of four runs that are driven meanwhile."""
    with Service(f"http://127.0.0.1:{port}") as client:
        runs = [client.start_run({"iterations": 1000})["run_id"] for _ in range(_RUNS)]
        while not all(warm(client.run(run_id)) for run_id in runs):
            time.sleep(0.2)
        figures = load(port, f"/runs/{runs[0]}", seconds, _CONNECTIONS, 0.0)
        figures["iterations_meanwhile"] = sum(client.run(run_id)["progress"]["iterations_done"] for run_id in runs)
        for run_id in runs:
            client.cancel(run_id)
    return figures


def warm(run: Any) -> bool:
    """Whether what a service imports behind its start is there. Raises RuntimeError if the run is over."""
    return trains(run) and len(run["iterations"]) >= _WARM_ITERATIONS


async def stream_figures(sessions: Sessions, port: int, clients: int, events: int) -> dict[str, Any]:
    """Milliseconds from an event's commit until a client of its run's stream has it."""
    run = _run("none")
    await RunStore(sessions).create(run)
    received: list[dict[int, float]] = [{} for _ in range(clients)]
    async with asyncio.TaskGroup() as tasks:
        for seen in received:
            tasks.create_task(_follow(port, run.id, seen))
        while not all(received):
            await asyncio.sleep(0.05)
        committed = {}
        for _ in range(events):
            async with sessions.begin() as session:
                seq = await append(session, run.id, EventType.PHASE_COMPLETED, "bench", {"phase": "rollout"})
            committed[seq] = time.monotonic()
            await asyncio.sleep(0.2)
        await RunStore(sessions).cancel(run.id, "bench")
    if any(set(seen) < set(committed) for seen in received):
        raise RuntimeError("a client missed an event")
    delays = sorted(1e3 * max(seen[seq] - at, 0.0) for seen in received for seq, at in committed.items())
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return {"clients": clients, "events": events, "p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


async def _follow(port: int, run_id: str, seen: dict[int, float]) -> None:
    """When each event of the stream came. Bytes and no HTTP library: 500 clients must not be what is measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"id: "):
            seen[int(line[4:])] = time.monotonic()
        elif line.startswith(b"event: run.cancelled"):
            writer.close()
            return
    raise RuntimeError("a stream broke off")


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    database = make_engine(postgres.url)
    try:
        await migrate(database)
        sessions = make_sessions(database)
        journal = await journal_figures(sessions, options.rollouts)
        port, url = free_port(), postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with AsyncExitStack() as stack:
            child = await asyncio.to_thread(stack.enter_context, service(directory, url, port))
            requests = await asyncio.to_thread(request_figures, port, options.seconds)
            streams = await stream_figures(sessions, port, options.clients, options.events)
            service_mb = round(psutil.Process(child.pid).memory_info().rss / 1e6)
    finally:
        await database.dispose()
        await postgres.stop()
    return {"journal": journal, "requests": requests, "streams": streams, "service_mb": service_mb, "goals": GOALS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of requests")
    parser.add_argument("--clients", type=int, default=500, help="of the stream")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        result = asyncio.run(measure(Path(directory), options)) | {"machine": machine}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    journal, requests, streams = result["journal"], result["requests"], result["streams"]
    print(f"rollouts kept: {journal['rollouts_per_s']:,.0f} a second (goal {GOALS['rollouts_per_s']:,.0f}),", end=" ")
    print(f"memory grew by {journal['growth_mb']} MB over {journal['rollouts']:,}")
    print(
        f"GET /runs/{{id}}: {requests['requests_per_s']:,.0f} a second (goal {GOALS['requests_per_s']:.0f}),", end=" "
    )
    print(f"p50 {requests['p50_ms']} ms, p99 {requests['p99_ms']} ms (goal {GOALS['request_p99_ms']:.0f})")
    print(
        f"{streams['clients']} clients of one stream: p50 {streams['p50_ms']} ms, p99 {streams['p99_ms']} ms", end=" "
    )
    print(f"(goal {GOALS['stream_p99_ms']:.0f}); the service takes {result['service_mb']} MB")
    print(f"others kept {machine['busy_cores']} of {machine['cores']} cores busy when it began")


if __name__ == "__main__":
    main()
