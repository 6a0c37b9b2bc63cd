"""Measure what the service can carry apart from learning itself: journal, requests, memory.

    python -m benchmarks.service.control_plane [--rollouts 20000] [--seconds 10] [--memory 20000]

(a) Four runs write finished rollouts to the journal at full speed.
(b) 16 connections send `GET /runs/{id}` for four runs, and 8 send `POST /learn-loop`, while a service drives those four
with a scripted learn loop: first at about 5 rollouts a second in total, the rate of the embedded engine, then at 200,
which no model reaches. Besides latencies it reports the CPU milliseconds of a request in the service and in Postgres,
including a share of what driving the runs takes; they are more reliable on a busy machine.
(c) Checks for leaks over many rollouts of runs that are requested and watched; exits with 1 if there are any.
The long form of (c) is `--memory 1000000`.
"""

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import delete, update

from benchmarks import processes
from benchmarks.durability.harness import idle_run, judge, migrated
from benchmarks.service.control_plane_load import measured
from benchmarks.service.control_plane_memory import memory_figures
from benchmarks.service.control_plane_service import QUICK_ITERATIONS
from benchmarks.service.service_under_load import trains
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Journal, Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.worker.journal_store import StoredJournal

GOALS = {
    "rollouts_per_s": 1000.0,
    "requests_per_s": 500.0,
    "request_p99_ms": 50.0,
    "posts_per_s": 100.0,
    "post_p99_ms": 300.0,
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
    leases_of_runs = [await _claimed(database, leases) for _ in range(_RUNS)]
    process = psutil.Process()
    await _keep(database, leases_of_runs[0], 10 * _AN_ITERATION)  # fills caches
    gc.collect()
    before_mb = process.memory_info().rss / 1e6
    started = time.monotonic()
    await asyncio.gather(*(_keep(database, lease, rollouts // _RUNS) for lease in leases_of_runs))
    seconds = time.monotonic() - started
    gc.collect()
    for lease in leases_of_runs:
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
    await idle_run(database, "bench")
    claimed = await leases.claim()
    assert claimed is not None
    return claimed[1]


@contextmanager
def service(directory: Path, database: str, rollouts_per_s: float) -> Iterator[tuple[int, int]]:
    """Run the service with scripted runs; yield its process id and its port once it answers."""
    port = free_port()
    flags = [f"--database={database}", f"--data-dir={directory / 'service'}", f"--port={port}", f"--runs={_RUNS}"]
    flags.append(f"--pause={_RUNS / rollouts_per_s}")
    with processes.module("benchmarks.service.control_plane_service", *flags) as child:
        with Service(f"http://127.0.0.1:{port}") as client:
            processes.wait_for(child, processes.answers(client))
        yield child.pid, port


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
            got |= measured(port, paths, seconds, _CONNECTIONS)
        with _processor_ms(process) as posted:
            posted |= measured(port, ["/learn-loop"], seconds, _POSTING, body='{"iterations": 1}')
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


def warm(run: Any) -> bool:
    """Return whether the service has finished its late imports. Raises RuntimeError if the run is over."""
    return trains(run) and len(run["iterations"]) >= QUICK_ITERATIONS


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    figures: dict[str, Any] = {"requests": {}, "goals": GOALS}
    async with migrated(directory) as store:
        figures["journal"] = await journal_figures(store.database, options.rollouts)
        for name, rate in _RATES.items():
            with service(directory, store.url, rate) as (pid, port):
                figures["requests"][name] = await asyncio.to_thread(request_figures, pid, port, options.seconds)
            await _cancel_all(store.database)
        with service(directory, store.url, _NO_PAUSE) as (pid, port):
            figures["memory"] = await asyncio.to_thread(memory_figures, pid, port, options.memory, _RUNS)
    return figures


async def _cancel_all(database: Database) -> None:
    """Cancel runs that were only posted, so that they do not run during the next measurement."""
    async with database.begin() as tx:
        await tx.execute(update(Run).values(status=RunStatus.CANCELLED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind of requests")
    parser.add_argument("--memory", type=int, default=20_000, help="rollouts over which memory is watched")
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        result = asyncio.run(measure(Path(directory), options)) | {"machine": machine}
    judge(result | {"violations": result["memory"].pop("violations")}, {"violations": []})


if __name__ == "__main__":
    main()
