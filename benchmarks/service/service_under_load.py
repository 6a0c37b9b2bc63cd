"""Measure the service's latency while it trains, its memory, and its start-up time.

    python -m benchmarks.service.service_under_load [--paced 20] [--flat-out 10]

Starts `learnloop serve` in a fresh directory, posts a learn-loop, and sends `GET /runs/{id}`: first
ten times a second over one connection, then over four as fast as they are answered. The run is cancelled at the end.
"""

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import processes
from benchmarks.service.control_plane_load import measured
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port

GOALS = {"p99_ms": 50.0, "engine_mb": 2000.0, "api_mb": 450.0, "answers_after_s": 3.0}
_PACE_S = 0.1
_CONNECTIONS = 4
_MEMORY_PAUSE_S = 0.5


@dataclass(slots=True)
class Memory:
    """Peaks in MB: resident memory of API and engine, proportional set size of Postgres.

    Most memory of Postgres is shared by its processes.
    """

    api: float = 0.0
    engine: float = 0.0
    postgres: float = 0.0
    over_time: list[dict[str, float]] = field(default_factory=list)

    def note(self, api: psutil.Process, seconds: float) -> None:
        """Take a sample."""
        sample = {"seconds": round(seconds, 1), "api": api.memory_info().rss / 1e6, "engine": 0.0, "postgres": 0.0}
        for child in api.children(recursive=True):
            try:
                if "learnloop_service.training.engine" in child.cmdline():
                    sample["engine"] += child.memory_info().rss / 1e6
                elif "postgres" in child.name():
                    sample["postgres"] += child.memory_full_info().pss / 1e6
            except psutil.NoSuchProcess:
                continue
        self.api, self.engine = max(self.api, sample["api"]), max(self.engine, sample["engine"])
        self.postgres = max(self.postgres, sample["postgres"])
        self.over_time.append({name: round(value, 1) for name, value in sample.items()})


@contextmanager
def watched_memory(child: "subprocess.Popen[bytes]") -> Iterator[Memory]:
    """Sample the memory of the service and its children until the block ends."""
    memory, over, process, started = Memory(), threading.Event(), psutil.Process(child.pid), time.monotonic()

    def watch() -> None:
        while not over.wait(_MEMORY_PAUSE_S):
            memory.note(process, time.monotonic() - started)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


def measure(data_dir: Path, paced_s: float, flat_out_s: float) -> dict[str, Any]:
    """Return all figures of one service."""
    port = free_port()
    started = time.monotonic()
    with (
        processes.service(data_dir, port) as child,
        watched_memory(child) as memory,
        Service(f"http://127.0.0.1:{port}") as service,
    ):
        processes.wait_for(child, processes.answers(service))
        answers_after_s = time.monotonic() - started
        processes.wait_for(child, lambda: service.readiness()["engine"] == "ready")
        ready_after_s = time.monotonic() - started
        run_id = service.start_run({"environment": {"name": "email_search"}, "iterations": 1000})["run_id"]
        processes.wait_for(child, lambda: trains(service.run(run_id)))
        path = f"/runs/{run_id}"
        paced = measured(port, [path], paced_s, 1, pace=_PACE_S)
        flat_out = measured(port, [path], flat_out_s, _CONNECTIONS)
        run = service.run(run_id)
        if run["status"] != "running":
            raise RuntimeError(f"the run is {run['status']}, not running: {run['error']}")
        service.cancel(run_id)
    return {
        "answers_after_s": round(answers_after_s, 2),
        "ready_after_s": round(ready_after_s, 2),
        "paced": paced,
        "flat_out": flat_out,
        "peak_mb": {"api": round(memory.api), "engine": round(memory.engine), "postgres": round(memory.postgres)},
        "memory_mb": memory.over_time,
        "iterations_meanwhile": run["progress"]["iterations_done"],
        "goals": GOALS,
    }


def trains(run: Any) -> bool:
    """Return whether the run is past its baseline. Raises RuntimeError if it is over."""
    if run["status"] not in ("queued", "running"):
        raise RuntimeError(f"the run is {run['status']}: {run['error']}")
    return bool(run["iterations"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paced", type=float, default=20.0, help="seconds of ten requests a second")
    parser.add_argument("--flat-out", type=float, default=10.0, help="seconds of four connections without pause")
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        result = measure(Path(directory), options.paced, options.flat_out) | {"machine": machine}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
