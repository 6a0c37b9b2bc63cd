"""Look for leaks in a service that drives run after run, for benchmarks/service/control_plane.py --memory."""

import json
import socket
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any
from urllib.request import urlopen

import psutil

from benchmarks.service.control_plane_service import ROLLOUTS, TASKS
from learnloop_service.app.cli.client import Service

MOST_GROWTH = 0.05
_POOL = 7
"""Database connections that can open during the measurement and stay open."""
_WATCHERS = 50
"""Streams open at a time; each sample closes the oldest and opens another."""
_LOOK_S = 0.1
_SETTLE_S = 15.0


@dataclass(frozen=True)
class Held:
    """The resources that a process holds."""

    fds: int
    connections: int
    threads: int
    tasks: int

    @classmethod
    def by(cls, process: psutil.Process, port: int) -> "Held":
        with urlopen(f"http://127.0.0.1:{port}{TASKS}") as reply:
            tasks = int(json.load(reply))
        return cls(process.num_fds(), len(process.net_connections("tcp")), process.num_threads(), tasks)

    def beyond(self, start: "Held") -> list[str]:
        """Return the names of the resources that grew since `start`."""
        spare = {"fds": _POOL, "connections": 0, "threads": _POOL, "tasks": 0}
        return [name for name, more in spare.items() if getattr(self, name) > getattr(start, name) + more]


def memory_figures(pid: int, port: int, rollouts: int, runs: int) -> dict[str, Any]:
    """Drive and watch runs with that many rollouts; return figures of resident memory and of what stays held."""
    process = psutil.Process(pid)
    with Service(f"http://127.0.0.1:{port}") as client:
        _drive(client, port, process, runs, 1)  # fills caches and finishes imports
        start = _settled(process, port, None)
        began = time.monotonic()
        samples = _drive(client, port, process, runs, max(1, rollouts // runs // ROLLOUTS))
        seconds = time.monotonic() - began
    end = _settled(process, port, start)
    tenth = max(1, len(samples) // 10)
    # Medians over a tenth each, because a single sample can fall into garbage collection.
    after_first, last = statistics.median(samples[tenth : 2 * tenth]), statistics.median(samples[-tenth:])
    growth = last / after_first - 1
    violations = [*end.beyond(start), *(["memory"] if growth > MOST_GROWTH else [])]
    return {
        "rollouts": rollouts,
        "rollouts_per_s": round(rollouts / seconds, 1),
        "mb_after_first_tenth": round(after_first, 1),
        "mb_at_end": round(last, 1),
        "growth": round(growth, 4),
        "start": asdict(start),
        "end": asdict(end),
        "violations": violations,
    }


def _drive(client: Service, port: int, process: psutil.Process, runs: int, iterations: int) -> list[float]:
    """Drive runs of `iterations` iterations to completion; return resident memory in MB at each look."""
    going = [client.start_run({"iterations": iterations})["run_id"] for _ in range(runs)]
    samples: list[float] = []
    watchers: list[socket.socket] = []
    while going:
        watchers.append(_watch(port, going[len(samples) % len(going)]))
        if len(watchers) > _WATCHERS:
            watchers.pop(0).close()
        states = {run_id: client.run(run_id)["status"] for run_id in going}
        if unexpected := set(states.values()) - {"queued", "running", "completed"}:
            raise RuntimeError(f"a run is {unexpected}")
        going = [run_id for run_id in going if states[run_id] != "completed"]
        samples.append(process.memory_info().rss / 1e6)
        time.sleep(_LOOK_S)
    for watcher in watchers:
        watcher.close()
    return samples


def _watch(port: int, run_id: str) -> socket.socket:
    """Open a client of the run's stream that reads nothing."""
    watcher = socket.create_connection(("127.0.0.1", port))
    head = f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
    watcher.sendall(head.encode())
    return watcher


def _settled(process: psutil.Process, port: int, start: Held | None) -> Held:
    """Return what is held once it is no more than at the start or no longer changes."""
    until, current = time.monotonic() + _SETTLE_S, Held.by(process, port)
    while time.monotonic() < until:
        time.sleep(1.0)
        before, current = current, Held.by(process, port)
        if not current.beyond(start or before):
            return current
    return current
