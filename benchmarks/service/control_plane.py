"""Measure what the service can carry apart from learning itself: journal, requests, streams, memory.

    python -m benchmarks.service.control_plane [--rollouts 20000] [--seconds 10] [--clients 500] [--events 50]
                                           [--memory 20000] [--json]

(a) Four runs write finished rollouts to the journal at full speed.
(b) 16 connections send `GET /runs/{id}` for four runs, and 8 send `POST /learn-loop`, while a service drives those four
with a scripted learn loop: first at about 5 rollouts a second in total, the rate of the embedded engine, then at 200,
which no model reaches. Besides latencies it reports the CPU milliseconds of a request in the service and in Postgres,
including a share of what driving the runs takes; they are more reliable on a busy machine.
(c) Clients stream one run's events; measures the time from an event's commit until each of them has it.
(d) Checks for leaks over many rollouts of runs that are requested and watched; exits with 1 if there are any.
The long form of (d) is `--memory 1000000`.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import delete, update
from ulid import ULID

from app.claims.lease import Lease
from app.cli.client import Service
from app.cli.service_process import free_port
from app.db.database import Database, make_database, make_engine
from app.db.migration import migrate
from app.db.tables import Journal, Run
from app.domain.event_types import EventType
from app.domain.run_state import RunStatus
from app.events.log import append
from app.processes.postgres import EmbeddedPostgres
from app.runs.claims import Limits, RunClaims
from app.runs.store import RunStore
from app.worker.journal_store import StoredJournal
from benchmarks import processes
from benchmarks.service.control_plane_memory import MOST_GROWTH, memory_figures
from benchmarks.service.control_plane_service import QUICK_ITERATIONS
from benchmarks.service.service_under_load import trains

GOALS = {
    "rollouts_per_s": 1000.0,
    "requests_per_s": 500.0,
    "request_p99_ms": 50.0,
    "posts_per_s": 100.0,
    "post_p99_ms": 300.0,
    "stream_p99_ms": 250.0,
}
_RUNS = 4
_CONNECTIONS = 16
_POSTING = 8
_RATES = {"real": 5.0, "stress": 200.0}
"""Rollouts a second, over all runs together."""
_NO_PAUSE = 1e6
_AN_ITERATION = 64
"""Rollouts of an iteration."""
_VALUE = json.dumps(
    {"messages": ["a question and its answer"] * 20, "tokens": [*range(500)], "logprobs": [-0.25] * 500}
)


async def journal_figures(database: Database, rollouts: int) -> dict[str, Any]:
    """Return the rollouts that four runs keep a second, and how much memory has grown."""
    leases = RunClaims(database, "bench", ttl_s=3600, limits=Limits(), backends=["none"], engine="none")
    held = [await _claimed(database, leases) for _ in range(_RUNS)]
    process = psutil.Process()
    await _keep(database, held[0], 10 * _AN_ITERATION)  # fills caches
    gc.collect()
    before_mb = process.memory_info().rss / 1e6
    started = time.monotonic()
    await asyncio.gather(*(_keep(database, lease, rollouts // _RUNS) for lease in held))
    seconds = time.monotonic() - started
    gc.collect()
    for lease in held:
        await RunStore(database).finish(lease, RunStatus.FAILED, error="done")
    return {
        "rollouts": rollouts,
        "rollouts_per_s": round(rollouts / seconds, 1),
        "bytes_each": len(_VALUE),
        "growth_mb": round(process.memory_info().rss / 1e6 - before_mb, 1),
    }


async def _keep(database: Database, lease: Lease[Run], rollouts: int) -> None:
    """Keep whole iterations: rollouts, their verdicts, then empty the journal like a saved iteration."""
    journal = StoredJournal(database, lease, asyncio.get_running_loop(), lambda: None)
    for iteration in range(rollouts // _AN_ITERATION):
        for number in range(_AN_ITERATION):
            journal.keep_soon(iteration, f"rollout/train/{number}", _VALUE)
        await journal.keep(iteration, "judge/train", "[]")
        async with database.begin() as tx:
            await tx.execute(delete(Journal).where(Journal.run_id == lease.id))


async def _claimed(database: Database, leases: RunClaims) -> Lease[Run]:
    await RunStore(database).create(_run("none"))
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
def service(directory: Path, database: str, port: int, rollouts_per_s: float) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the service with scripted runs; yield once it answers."""
    flags = [f"--database={database}", f"--data-dir={directory / 'service'}", f"--port={port}", f"--runs={_RUNS}"]
    flags.append(f"--pause={_RUNS / rollouts_per_s}")
    with (directory / "service.log").open("ab") as log:
        child = subprocess.Popen([sys.executable, "-m", "benchmarks.service.control_plane_service", *flags], stderr=log)
    try:
        with Service(f"http://127.0.0.1:{port}") as client:
            processes.wait_for(child, processes.answers(client))
        yield child
    finally:
        child.terminate()
        child.wait()


def request_figures(pid: int, port: int, seconds: float) -> dict[str, Any]:
    """Measure requests for four runs in progress, then requests that create more runs."""
    process = psutil.Process(pid)
    with Service(f"http://127.0.0.1:{port}") as client:
        runs = [client.start_run({"iterations": 10_000})["run_id"] for _ in range(_RUNS)]
        while not all(warm(client.run(run_id)) for run_id in runs):
            time.sleep(0.2)
        before = _cpu_s(process)
        time.sleep(seconds / 2)
        driving = (_cpu_s(process) - before) / (seconds / 2)
        paths = [f"/runs/{run_id}" for run_id in runs]
        with _processor_ms(process) as got:
            got |= _load(port, seconds, _CONNECTIONS, *paths)
        with _processor_ms(process) as posted:
            posted |= _load(port, seconds, _POSTING, "/learn-loop", body='{"iterations": 1}')
        for run_id in runs:
            client.cancel(run_id)
    return {"driving_cores": round(driving, 2), "get": got, "post": posted}


@contextmanager
def _processor_ms(service: psutil.Process) -> Iterator[dict[str, float]]:
    """Add the CPU time of a request in the service and in this process's Postgres.

    The figures include the request's share of what the runs in progress take.
    """
    figures: dict[str, float] = {}
    service_s, postgres_s = _cpu_s(service), _postgres_cpu_s()
    yield figures
    each_ms = 1e3 / figures["all_requests"]
    figures["service_ms"] = round(each_ms * (_cpu_s(service) - service_s), 2)
    figures["postgres_ms"] = round(each_ms * (_postgres_cpu_s() - postgres_s), 2)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _postgres_cpu_s() -> float:
    """Return the CPU seconds of all Postgres processes; connections stay open, so none of them ends in between."""
    ours = psutil.Process().children(recursive=True)
    return sum(_cpu_s(process) for process in ours if process.name() == "postgres")


def _load(port: int, seconds: float, connections: int, *paths: str, body: str | None = None) -> Any:
    """Return the figures of benchmarks/service/control_plane_load.py. Raises CalledProcessError."""
    command = [sys.executable, "-m", "benchmarks.service.control_plane_load", str(port), *paths]
    command += [f"--seconds={seconds}", f"--connections={connections}", *([f"--body={body}"] if body else [])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def warm(run: Any) -> bool:
    """Return whether the service has finished its late imports. Raises RuntimeError if the run is over."""
    return trains(run) and len(run["iterations"]) >= QUICK_ITERATIONS


async def stream_figures(database: Database, port: int, clients: int, events: int) -> dict[str, Any]:
    """Measure the milliseconds from an event's commit until each client of its run's stream has it."""
    run = _run("none")
    await RunStore(database).create(run)
    received: list[dict[int, float]] = [{} for _ in range(clients)]
    async with asyncio.TaskGroup() as tasks:
        for seen in received:
            tasks.create_task(_follow(port, run.id, seen))
        while not all(received):
            await asyncio.sleep(0.05)
        committed = {}
        for _ in range(events):
            async with database.begin() as tx:
                seq = await append(tx, run.id, EventType.PHASE_COMPLETED, "bench", {"phase": "rollout"})
            committed[seq] = time.monotonic()
            await asyncio.sleep(0.2)
        await RunStore(database).cancel(run.id, "bench")
    if any(set(seen) < set(committed) for seen in received):
        raise RuntimeError("a client missed an event")
    delays = sorted(1e3 * max(seen[seq] - at, 0.0) for seen in received for seq, at in committed.items())
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return {"clients": clients, "events": events, "p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


async def _follow(port: int, run_id: str, seen: dict[int, float]) -> None:
    """Record when each event of the stream arrived.

    It uses no HTTP library, so that the load of 500 clients hardly affects the measurement.
    """
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
    """Return all figures."""
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    found: dict[str, Any] = {"requests": {}, "goals": GOALS}
    database_engine = make_engine(postgres.url)
    try:
        await migrate(database_engine)
        database = make_database(database_engine)
        found["journal"] = await journal_figures(database, options.rollouts)
        url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
        for name, rate in _RATES.items():
            with _fresh(directory, url, rate) as (child, port):
                found["requests"][name] = await asyncio.to_thread(request_figures, child.pid, port, options.seconds)
                if name == "stress":
                    found["streams"] = await stream_figures(database, port, options.clients, options.events)
            await _cancel_all(database)
        with _fresh(directory, url, _NO_PAUSE) as (child, port):
            found["memory"] = await asyncio.to_thread(memory_figures, child.pid, port, options.memory, _RUNS)
    finally:
        await database_engine.dispose()
        await postgres.stop()
    return found


@contextmanager
def _fresh(directory: Path, url: str, rate: float) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    port = free_port()
    with service(directory, url, port, rate) as child:
        yield child, port


async def _cancel_all(database: Database) -> None:
    """Cancel runs that were only posted, so that they do not run during the next measurement."""
    async with database.begin() as tx:
        await tx.execute(update(Run).values(status=RunStatus.CANCELLED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of requests")
    parser.add_argument("--clients", type=int, default=500, help="of the stream")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--memory", type=int, default=20_000, help="rollouts over which memory is watched")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        result = asyncio.run(measure(Path(directory), options)) | {"machine": machine}
    print(json.dumps(result, indent=2) if options.json else _told(result))
    sys.exit(bool(result["memory"]["violations"]))


def _told(result: Mapping[str, Any]) -> str:
    journal, streams, memory, machine = (result[name] for name in ("journal", "streams", "memory", "machine"))
    lines = [
        f"rollouts kept: {journal['rollouts_per_s']:,.0f} a second (goal {GOALS['rollouts_per_s']:,.0f}), memory grew "
        f"by {journal['growth_mb']} MB over {journal['rollouts']:,}"
    ]
    for name, figures in result["requests"].items():
        lines.append(f"{name}: {_RATES[name]:.0f} rollouts a second, which take {figures['driving_cores']} cores")
        for method, goal in (("get", "request"), ("post", "post")):
            each = figures[method]
            lines.append(
                f"  {method.upper()}: {each['requests_per_s']:,.0f} a second (goal {GOALS[f'{goal}s_per_s']:.0f}), "
                f"p50 {each['p50_ms']} ms, p99 {each['p99_ms']} ms (goal {GOALS[f'{goal}_p99_ms']:.0f}); "
                f"processor time of each: {each['service_ms']} ms in the service, {each['postgres_ms']} ms in Postgres"
            )
    lines += [
        f"{streams['clients']} clients of one stream: p50 {streams['p50_ms']} ms, p99 {streams['p99_ms']} ms (goal "
        f"{GOALS['stream_p99_ms']:.0f})",
        f"memory over {memory['rollouts']:,} rollouts, {memory['rollouts_per_s']:,.0f} a second: "
        f"{memory['mb_after_first_tenth']} MB after the first tenth, {memory['mb_at_end']} MB at the end "
        f"({memory['growth']:+.1%}, at most {MOST_GROWTH:+.0%})",
        f"held at the start {memory['start']}, at the end {memory['end']}",
        f"violations: {', '.join(memory['violations']) or 'none'}",
        f"others kept {machine['busy_cores']} of {machine['cores']} cores busy when it began",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
