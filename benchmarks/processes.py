"""Starts the real engine and service as child processes of a benchmark."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from learnloop_service.app.cli.client import Service, ServiceUnreachable

_START_S = 120.0
_STOP_S = 30.0


@contextmanager
def engine(data_dir: Path, *flags: str) -> Iterator[str]:
    """Run an engine with its data in `data_dir` and yield its OpenAI base URL. It logs to `engine.log` there."""
    ready = data_dir / "ready.json"
    where = ("--data-dir", str(data_dir), "--ready-file", str(ready))
    command = ["learnloop_service.training.engine", *where, *flags, "--die-with-parent"]
    with _child(command, data_dir / "engine.log") as child:
        wait_for(child, ready.exists)
        yield f"http://127.0.0.1:{json.loads(ready.read_text())['port']}/v1"


@contextmanager
def service(data_dir: Path, port: int, **settings: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `learnloop serve` and yield it before it answers. It logs to `service.log` in `data_dir`.

    `settings` are environment variables.
    """
    command = ["learnloop_service.app.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    with _child(command, data_dir / "service.log", settings) as child:
        yield child


@contextmanager
def module(name: str, *flags: str, log: Path = Path(os.devnull)) -> Iterator["subprocess.Popen[bytes]"]:
    """Start that module with `python -m` and yield it."""
    with _child([name, *flags], log) as child:
        yield child


@contextmanager
def _child(
    command: list[str], log_path: Path, settings: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, **(settings or {})},
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for(
    child: "subprocess.Popen[bytes]", condition: Callable[[], bool], *, pause_s: float = 0.02, most_s: float = _START_S
) -> None:
    """Wait until the condition holds. Raises RuntimeError if the child ends first or if it takes too long."""
    until = time.monotonic() + most_s
    while not condition():
        if child.poll() is not None:
            raise RuntimeError(f"{child.args!r} ended with status {child.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"{child.args!r} was not there after {most_s:.0f} s")
        time.sleep(pause_s)


def answers(service: Service) -> Callable[[], bool]:
    """Return a condition for `wait_for`: the service answers, ready or not."""

    def ask() -> bool:
        try:
            service.readiness()
        except ServiceUnreachable:
            return False
        return True

    return ask


def machine() -> dict[str, Any]:
    """Describe the machine: `cores`, and `busy_cores` that other processes used before the benchmark began."""
    cores = psutil.cpu_count() or 1
    return {"cores": cores, "busy_cores": round(psutil.cpu_percent(interval=1.0) / 100 * cores, 2)}
