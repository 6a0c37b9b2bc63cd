"""Runs a service in a child process for the duration of one command."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rich.console import Console

from learnloop_service.app.cli.client import Service, ServiceUnreachable
from learnloop_service.app.cli.serve import data_directory, require_engine, settings_with
from learnloop_service.app.cli.terminal import Failure, progress

_PR_SET_PDEATHSIG = 1
_UNASSIGNED_PORTS = range(20_000, 32_768)
"""Ports below the ranges from which systems assign ports to programs that ask for any, and to outgoing connections."""
_POLL_S = 0.1
_STOP_S = 40.0
"""Longest wait for the service to stop, in seconds. It is longer than the service's own limit."""


@contextmanager
def own_service(
    data_dir: Path,
    *,
    ready_s: float = 180.0,
    waiting: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """Start `learnloop serve` on a free loopback port, wait until it is ready, and stop it at the end.

    `variables` are added to its environment. Its log goes to `service.log` in the data directory. `waiting` is called
    with what is not ready yet. Raises Failure if the engine's libraries are missing or the directory cannot be used,
    and with the last lines of the log if the service does not become ready within `ready_s` seconds or stops responding
    later.
    """
    require_engine(data_dir)
    log = _Log(data_dir / "service.log")
    port = free_port()
    process = _start(data_dir, log.path, port, variables or {})
    try:
        with Service(f"http://127.0.0.1:{port}") as service:
            _wait_until_ready(service, process, log, ready_s, waiting)
            yield service
    except ServiceUnreachable as error:
        raise Failure(f"the service stopped responding. {log.tail()}") from error
    finally:
        _stop(process)


def service_at(url: str | None, data_dir: Path | None) -> AbstractContextManager[Service]:
    """Return the service at a URL or, without one, one that is started for the command in the data directory."""
    if url is not None:
        return Service(url)
    return own_service(data_directory(data_dir), waiting=Waiting(progress).show)


class Waiting:
    """Prints what is being waited for when it changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: str | None = None

    def show(self, what: str) -> None:
        """Print this, unless it was printed last."""
        if what != self._said:
            self._said = what
            self._console.print(f"waiting for the {what}", style="dim")


def _start(data_dir: Path, log_path: Path, port: int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # -P ignores a directory `app` that happens to be in the working directory.
    command = [
        sys.executable,
        "-P",
        "-m",
        "learnloop_service.app.cli",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--data-dir", str(data_dir)]
    if not os.environ.get("LEARNLOOP_API_KEY") and settings_with(data_dir=data_dir).require_keys == "auto":
        variables = {"LEARNLOOP_REQUIRE_KEYS": "never", **variables}  # the data directory can hold keys
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                # In a new session, so that Ctrl-C reaches only this command, which then stops the service cleanly.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
    except OSError as error:
        raise Failure(f"cannot use the data directory {data_dir}: {error.strerror}") from error


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens. The system does not assign it to other programs, so it stays
    free until the service listens on it."""
    while True:
        port = random.choice(_UNASSIGNED_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _die_with_parent() -> None:
    """Ask the system, in the child, for SIGTERM when the parent dies, even by kill -9 (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_ready(
    service: Service, process: subprocess.Popen[bytes], log: "_Log", ready_s: float, waiting: Callable[[str], None]
) -> None:
    deadline = time.monotonic() + ready_s
    missing = "service"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failure(f"the service exited during startup. {log.tail()}")
        waiting(missing)
        try:
            readiness = service.readiness()
        except ServiceUnreachable:
            missing = "service"
        else:
            missing = _missing(readiness)
            if not missing:
                return
            if readiness["engine"] == "failed":
                raise Failure(f"the engine failed to start. {log.tail()}")
        time.sleep(_POLL_S)
    raise Failure(f"the {missing} was not ready after {ready_s:.0f} s. {log.tail()}")


def _missing(readiness: dict[str, str]) -> str:
    """Return the name of what is not ready yet, or an empty string."""
    if readiness["database"] != "ok":
        return "database"
    return "" if readiness["engine"] in ("ready", "shared") else "engine"


class _Log:
    """A service's log, of which only the lines after its start are shown: earlier services wrote to the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def tail(self, lines: int = 12) -> str:
        written = self.path.read_bytes()[self._start :].decode(errors="replace").splitlines()[-lines:]
        return "\n".join([f"Last lines of {self.path}:", *(f"  {line}" for line in written)])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, wait for a clean stop, then send SIGKILL to the whole group."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
