"""Freeze processes that the service depends on with SIGSTOP; report its health and how long it takes to stop and start.

Three attacks on a real service process: its engine is frozen; its embedded Postgres is frozen and the service is then
stopped; its port is already in use.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from benchmarks import processes
from learnloop_service.app.cli.client import Service, ServiceUnreachable
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

_POLL_S = 0.05
_START_S = 120.0


@contextmanager
def _service(data_dir: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a service; kill it and everything it started at the end, because frozen processes do not stop."""
    with processes.service(data_dir, port, LEARNLOOP_LOG_FORMAT="json") as child:
        try:
            yield child
        finally:
            family = []
            with suppress(psutil.NoSuchProcess):
                family = [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]
            for process in [*family, *_servers(data_dir)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _servers(data_dir: Path) -> list[psutil.Process]:
    """Return the processes of the Postgres in that data directory."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd", "status"])
        if process.info["name"] == "postgres"
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and process.info["cwd"] == str(data_dir / "postgres")
    ]


def _seconds_until(condition: Callable[[], object], limit_s: float) -> str:
    """Return how long the condition took to hold, or that it did not hold in time."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if condition():
            return f"{time.monotonic() - began:.1f} s"
        time.sleep(_POLL_S)
    return f"not within {limit_s:.0f} s"


def _readiness(client: Service) -> Json:
    try:
        return client.readiness()
    except ServiceUnreachable:
        return {}


def _up(client: Service) -> bool:
    readiness = _readiness(client)
    return bool(readiness.get("status") == "ready" and readiness.get("engine") == "ready")


def frozen_engine(data_dir: Path, port: int, limit_s: float) -> None:
    """Report what the service says while its engine is frozen, and when a new engine replaces it."""
    note = data_dir / "engine" / "process.json"
    with (
        _service(data_dir, port),
        Service(f"http://127.0.0.1:{port}", timeout_s=90) as client,
        ThreadPoolExecutor(1) as beside,
    ):
        _say("engine: the service is up after", _seconds_until(lambda: _up(client), _START_S))
        pid = json.loads(note.read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)
        frozen = time.monotonic()
        reading = beside.submit(_timed_models, client.url)
        _say("engine: /health/ready says so after", _seconds_until(lambda: not _up(client), limit_s))
        _say("engine: it says", _readiness(client))
        _say("engine: /v1/models asked when it froze:", reading.result())
        _say("engine: /v1/models asked now:", _timed_models(client.url))

        def replaced() -> bool:
            return _up(client) and json.loads(note.read_text())["pid"] != pid

        _seconds_until(replaced, max(1.0, limit_s - (time.monotonic() - frozen)))
        _say("engine: another one works:", replaced(), f"({time.monotonic() - frozen:.1f} s after the freeze)")


def _timed_models(url: str) -> str:
    began = time.monotonic()
    try:
        answer = str(httpx.get(f"{url}/v1/models", timeout=90, trust_env=False).status_code)
    except httpx.TransportError as error:
        answer = type(error).__name__
    return f"{answer} after {time.monotonic() - began:.1f} s"


def frozen_postgres(data_dir: Path, port: int, limit_s: float) -> None:
    """Stop the service while its Postgres is frozen; report the time, what is left, and whether it starts again."""
    with Service(f"http://127.0.0.1:{port}", timeout_s=30) as client, _service(data_dir, port) as child:
        _seconds_until(lambda: _up(client), _START_S)
        for server in _servers(data_dir):
            server.suspend()
        seconds = _seconds_until(lambda: _readiness(client).get("status") != "ready", limit_s)
        _say("postgres: /health/ready says so after", seconds)
        child.terminate()
        _say("postgres: stopped after", _seconds_until(lambda: child.poll() is not None, 150))
        _say("postgres: exit status", child.poll(), "server processes left:", len(_servers(data_dir)))
        with _service(data_dir, port) as again:
            after = _seconds_until(lambda: again.poll() is not None or _up(client), _START_S)
            _say("postgres: next start", "up" if again.poll() is None else "failed", f"after {after}")


def taken_port(data_dir: Path) -> None:
    """Report how long a service takes to say that its port is in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with _service(data_dir, listener.getsockname()[1]) as child:
            after = _seconds_until(lambda: child.poll() is not None, 60)
            _say("port: exit status", child.poll(), f"after {after}")
            log = (data_dir / "service.log").read_text().splitlines()
            _say("port:", *(line for line in log[-30:] if "service is up" in line or line.startswith("learnloop:")))


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _attacks(names: list[str], limit_s: float) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="learnloop-") as root:
            data_dir = Path(root) / "data"
            data_dir.mkdir()
            if name == "engine":
                frozen_engine(data_dir, free_port(), limit_s)
            elif name == "postgres":
                frozen_postgres(data_dir, free_port(), limit_s)
            else:
                taken_port(data_dir)


def main() -> None:
    """Print the results of each attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", default=["engine", "postgres", "port"], help="engine, postgres, port")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for each thing that is waited for")
    options = parser.parse_args()
    _attacks(options.attacks, options.limit)


if __name__ == "__main__":
    main()
