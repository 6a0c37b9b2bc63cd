"""Freeze processes that the service depends on with SIGSTOP; report its health and how long it takes to stop and start.

Three attacks on a real service process: its engine is frozen; its embedded Postgres is frozen and the service is then
stopped; its port is already in use.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.cli.service_process import free_port

_POLL_S = 0.05
_START_S = 120.0


@asynccontextmanager
async def _service(data_dir: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a service; kill it and everything it started at the end."""
    with (data_dir.parent / "service.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", "serve", "--data-dir", str(data_dir), "--port", str(port)),
            stderr=log,
            stdout=log,
            env=os.environ | {"LEARNLOOP_LOG_FORMAT": "json"},
        )
    try:
        yield process
    finally:
        family = []
        with suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for each in [*family, *_servers(data_dir)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        await process.wait()


def _servers(data_dir: Path) -> list[psutil.Process]:
    """Return the processes of the Postgres in that data directory."""
    return [
        each
        for each in psutil.process_iter(["name", "cwd", "status"])
        if each.info["name"] == "postgres"
        and each.info["status"] != psutil.STATUS_ZOMBIE
        and each.info["cwd"] == str(data_dir / "postgres")
    ]


async def _seconds_until(condition: Callable[[], Any], limit_s: float) -> str:
    """Return how long the condition took to hold, or that it did not hold in time."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return f"{time.monotonic() - began:.1f} s"
        await asyncio.sleep(_POLL_S)
    return f"not within {limit_s:.0f} s"


async def _readiness(client: httpx.AsyncClient) -> dict[str, Any]:
    try:
        return dict((await client.get("/health/ready")).json())
    except httpx.TransportError:
        return {}


async def _up(client: httpx.AsyncClient) -> bool:
    said = await _readiness(client)
    return said.get("status") == "ready" and said.get("engine") == "ready"


async def frozen_engine(data_dir: Path, port: int, limit_s: float) -> None:
    """Report what the service says while its engine is frozen, and when a new engine replaces it."""
    note = data_dir / "engine" / "process.json"
    async with _service(data_dir, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as client:
        _say("engine: the service is up after", await _seconds_until(lambda: _up(client), _START_S))
        pid = json.loads(note.read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)
        frozen = time.monotonic()
        reading = asyncio.create_task(_timed_models(client))

        async def said() -> bool:
            return not await _up(client)

        _say("engine: /health/ready says so after", await _seconds_until(said, limit_s))
        _say("engine: it says", await _readiness(client))
        _say("engine: /v1/models asked when it froze:", await reading)
        _say("engine: /v1/models asked now:", await _timed_models(client))

        async def replaced() -> bool:
            return await _up(client) and json.loads(note.read_text())["pid"] != pid

        left_s = max(1.0, limit_s - (time.monotonic() - frozen))
        await _seconds_until(replaced, left_s)
        _say("engine: another one works:", await replaced(), f"({time.monotonic() - frozen:.1f} s after the freeze)")


async def _timed_models(client: httpx.AsyncClient) -> str:
    began = time.monotonic()
    try:
        said = str((await client.get("/v1/models")).status_code)
    except httpx.TransportError as error:
        said = type(error).__name__
    return f"{said} after {time.monotonic() - began:.1f} s"


async def frozen_postgres(data_dir: Path, port: int, limit_s: float) -> None:
    """Stop the service while its Postgres is frozen; report the time, what is left, and whether it starts again."""
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
    async with client, _service(data_dir, port) as process:
        await _seconds_until(lambda: _up(client), _START_S)
        for server in _servers(data_dir):
            server.suspend()

        async def said() -> bool:
            return (await _readiness(client)).get("status") != "ready"

        _say("postgres: /health/ready says so after", await _seconds_until(said, limit_s))
        process.terminate()
        _say("postgres: stopped after", await _seconds_until(lambda: process.returncode is not None, 150))
        _say("postgres: exit status", process.returncode, "server processes left:", len(_servers(data_dir)))
        async with _service(data_dir, port) as again:

            async def decided() -> bool:
                return again.returncode is not None or await _up(client)

            after = await _seconds_until(decided, _START_S)
            _say("postgres: next start", "up" if again.returncode is None else "failed", f"after {after}")


async def taken_port(data_dir: Path) -> None:
    """Report how long a service takes to say that its port is in use."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with _service(data_dir, taken.getsockname()[1]) as process:
            after = await _seconds_until(lambda: process.returncode is not None, 60)
            _say("port: exit status", process.returncode, f"after {after}")
            log = (data_dir.parent / "service.log").read_text().splitlines()
            _say("port:", *(line for line in log[-30:] if "service is up" in line or line.startswith("learnloop:")))


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _attacks(names: list[str], limit_s: float) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="learnloop-") as root:
            data_dir = Path(root) / "data"
            data_dir.mkdir()
            if name == "engine":
                await frozen_engine(data_dir, free_port(), limit_s)
            elif name == "postgres":
                await frozen_postgres(data_dir, free_port(), limit_s)
            else:
                await taken_port(data_dir)


def main() -> None:
    """Print the results of each attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", default=["engine", "postgres", "port"], help="engine, postgres, port")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for each thing that is waited for")
    options = parser.parse_args()
    asyncio.run(_attacks(options.attacks, options.limit))


if __name__ == "__main__":
    main()
