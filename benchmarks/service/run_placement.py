"""Compare the costs of driving runs in threads of the API process and in a worker process.

    python -m benchmarks.service.run_placement [--rounds 3] [--seconds 15] [--json]

Each round starts both layouts in turn, each with a new Postgres and a new engine: `learnloop serve` alone, and
`learnloop serve` with LEARNLOOP_MAX_CONCURRENT_RUNS=0 next to `learnloop worker`. One email_search run trains on the
embedded engine while this process sends `GET /runs/{id}` ten times a second over one connection, then without pause
over four. docs/decisions/0004-where-runs-are-driven.md uses these figures.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from app.cli.client import Service
from app.cli.service_process import free_port
from app.logs import configure_logs
from app.processes.postgres import EmbeddedPostgres
from benchmarks import processes
from benchmarks.service.service_under_load import load, trains

LAYOUTS = ("threads", "worker")
_FIGURES = {
    "answers_after_s": "HTTP answers after, s",
    "trains_after_s": "first iteration after the POST, s",
    "api_mb": "API process, MB (unique memory)",
    "worker_mb": "worker process, MB",
    "paced_p50_ms": "GET 10 a second: p50, ms",
    "paced_p99_ms": "p99, ms",
    "flat_out_per_s": "GET without pause: requests a second",
    "flat_out_p99_ms": "p99, ms",
    "rollouts_per_s": "rollouts a second meanwhile",
}
_REQUEST = {
    "environment": {"name": "email_search"},
    "iterations": 1000,
    "evaluation": {"every": 1000, "scenarios": 8},
}
_BASELINE_S = 600.0


def measure(layout: str, directory: Path, seconds: float) -> dict[str, float]:
    """Start one layout from scratch and return its figures."""
    port = free_port()
    with ExitStack() as stack:
        engine_url = stack.enter_context(processes.engine(_made(directory / "engine"))).removesuffix("/v1")
        environment = {
            "DATABASE_URL": stack.enter_context(_postgres(directory / "database")),
            "LEARNLOOP_ENGINE_URL": engine_url,
            "LEARNLOOP_RATE_PER_S": "0",
            "LEARNLOOP_LOG_LEVEL": "warning",
        }
        here = {**environment, "LEARNLOOP_MAX_CONCURRENT_RUNS": "1" if layout == "threads" else "0"}
        started = time.monotonic()
        api = stack.enter_context(processes.service(_made(directory / "api"), port, **here))
        client = stack.enter_context(Service(f"http://127.0.0.1:{port}"))
        processes.wait_for(api, processes.answers(client))
        answers_after_s = time.monotonic() - started
        worker = None
        if layout == "worker":
            worker = stack.enter_context(processes.worker(_made(directory / "worker"), **environment))
        run_id = client.start_run(_REQUEST)["run_id"]
        posted = time.monotonic()
        processes.wait_for(api, lambda: trains(client.run(run_id)), most_s=_BASELINE_S)
        trains_after_s = time.monotonic() - posted
        path = f"/runs/{run_id}"
        before, begun = _rollouts(client, run_id), time.monotonic()
        paced = load(port, path, seconds, 1, 0.1)
        flat_out = load(port, path, seconds, 4, 0.0)
        rollouts = (_rollouts(client, run_id) - before) / (time.monotonic() - begun)
        figures = {
            "answers_after_s": answers_after_s,
            "trains_after_s": trains_after_s,
            "api_mb": _unique_mb(api.pid),
            "worker_mb": _unique_mb(worker.pid) if worker else 0.0,
            "paced_p50_ms": paced["p50_ms"],
            "paced_p99_ms": paced["p99_ms"],
            "flat_out_per_s": flat_out["requests_per_s"],
            "flat_out_p99_ms": flat_out["p99_ms"],
            "rollouts_per_s": rollouts,
        }
        client.cancel(run_id)
        return figures


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    """Run a Postgres on a socket; yield its URL."""
    server = EmbeddedPostgres(_made(directory))
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            yield server.url.set(drivername="postgresql").render_as_string(hide_password=False)
        finally:
            runner.run(server.stop())


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _rollouts(client: Service, run_id: str) -> float:
    """Return the number of finished rollouts, including those of the unfinished phase for precision."""
    progress = client.run(run_id)["progress"]
    done = 64.0 * int(progress["iterations_done"])
    return done + float(progress["done"] or 0 if progress["phase"] == "rollout" else 0)


def _unique_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().uss) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each kind of load")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logs("error", "json")
    machine = processes.machine()
    found: dict[str, list[dict[str, float]]] = {layout: [] for layout in LAYOUTS}
    for _ in range(options.rounds):
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
                found[layout].append(measure(layout, Path(directory), options.seconds))
    if options.json:
        print(json.dumps({"machine": machine, "figures": found}, indent=2))
        return
    print(f"{machine['cores']} cores, {machine['busy_cores']} of them busy before; medians of {options.rounds} rounds")
    print(f"{'':>40}  {'threads':>9}  {'worker':>9}  {'ratio':>6}")
    for name, title in _FIGURES.items():
        threads, worker = (statistics.median(each[name] for each in found[layout]) for layout in LAYOUTS)
        ratio: Any = f"{worker / threads:6.2f}" if threads else "     -"
        print(f"{title:>40}  {threads:9,.1f}  {worker:9,.1f}  {ratio}")


if __name__ == "__main__":
    main()
