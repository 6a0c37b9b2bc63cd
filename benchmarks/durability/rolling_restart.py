"""Restart two API processes and two workers in turn while clients retry failed requests once.

    python -m benchmarks.durability.rolling_restart [--restarts 20] [--every 5] [--rate 20]

Uses a real Postgres. Every `--every` seconds, but not before the previous process is back, the next one gets SIGTERM
and is restarted. Clients read and write at `--rate` requests a second over both API processes, and send a failed
request once more to the other process. Exits with 1 if a request failed twice, a process took longer than 10 s to end,
a released run was not claimed within 2 s, or a run lost anything.
"""

import argparse
import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from benchmarks.durability.harness import migrated, report
from benchmarks.frozen_code import freeze
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Event, Iteration, Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import RunStatus

_RUNS = 4
_EXIT_S, _HANDOVER_S, _UP_S, _CALM_S = 10.0, 2.0, 180.0, 120.0


@dataclass
class _Role:
    """One of the four processes."""

    name: str
    command: list[str]
    code: Path
    directory: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        (self.directory / "up").unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.code, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def up(self) -> None:
        """Wait until the process is ready. Raises RuntimeError if it ends."""
        async with asyncio.timeout(_UP_S), httpx.AsyncClient(trust_env=False) as client:
            while not await self._is_up(client):
                if self.process is None or self.process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended: {(self.directory / 'log').read_text()[-2000:]}")
                await asyncio.sleep(0.05)

    async def _is_up(self, client: httpx.AsyncClient) -> bool:
        if not self.port:
            return (self.directory / "up").exists()
        try:
            return (await client.get(f"http://127.0.0.1:{self.port}/health/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def stop(self) -> float:
        """Send SIGTERM; return the seconds until the process ended."""
        assert self.process is not None
        clock = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait)
        return time.monotonic() - clock


@dataclass
class _Clients:
    """Clients that send requests at a steady rate."""

    ports: list[int]
    runs: list[str]
    webhook: str
    results: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    async def ask_for_ever(self, rate: float) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client, asyncio.TaskGroup() as group:
            for number in itertools.count():
                group.create_task(self._ask(client, number))
                await asyncio.sleep(1 / rate)

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        first = number % len(self.ports)
        for attempt, port in enumerate((self.ports[first], self.ports[first - 1])):
            error = await self._once(client, port, number)
            if error is None:
                self.results["at once" if attempt == 0 else "on the other one"] += 1
                return
        self.failures[error or ""] += 1

    async def _once(self, client: httpx.AsyncClient, port: int, number: int) -> str | None:
        """Send one request; return its error, or None."""
        url = f"http://127.0.0.1:{port}"
        try:
            if number % 10:
                reply = await client.get(f"{url}/runs/{self.runs[number % len(self.runs)]}")
            else:
                change = {"url": f"http://127.0.0.1:9999/{number}"}
                reply = await client.patch(f"{url}/webhooks/{self.webhook}", json=change)
        except httpx.TransportError as broken:
            return f"{type(broken).__name__} at {port}"
        return None if reply.is_success else f"{reply.status_code} at {port}: {reply.text[:200]}"


async def rolling_restart(directory: Path, *, restarts: int, every_s: float, rate: float) -> dict[str, Any]:
    """Return figures and `violations`."""
    async with migrated(directory) as store:
        roles = _roles(directory, freeze(directory), store.url)
        try:
            for role in roles:
                role.start()
            for role in roles:
                await role.up()
            clients = _Clients([role.port for role in roles if role.port], *await _begin(roles[0].port))
            asking = asyncio.create_task(clients.ask_for_ever(rate))
            exits = await _restart(roles, restarts, every_s)
            await asyncio.sleep(1.0)
            asking.cancel()
            await asyncio.wait({asking})
            await _cancel_all(roles[0].port, clients.runs)
            handovers, wrong = await _checked(store.database)
        finally:
            for role in roles:
                if role.process is not None:
                    role.process.kill()
                    role.process.wait()
    wrong += [f"failed twice, {times} requests: {error}" for error, times in clients.failures.items()]
    wrong += [f"it took {exit_s:.1f} s to end" for exit_s in exits if exit_s > _EXIT_S]
    wrong += [f"a run waited {wait_s:.1f} s for its next worker" for wait_s in handovers if wait_s > _HANDOVER_S]
    return {
        "restarts": restarts,
        "requests": dict(clients.results),
        "failed": clients.failures.total(),
        "longest_exit_s": round(max(exits), 2),
        "handovers": len(handovers),
        "longest_handover_s": round(max(handovers, default=0.0), 2),
        "violations": wrong,
    }


def _roles(directory: Path, code: Path, url: str) -> list[_Role]:
    """The four processes in the order in which they are restarted."""
    roles = []
    for name in ("api-1", "worker-1", "api-2", "worker-2"):
        port = free_port() if name.startswith("api") else 0
        home = directory / name
        flags = [f"--database={url}", f"--data-dir={home}", f"--port={port}"]
        command = [sys.executable, "-m", "benchmarks.durability.rolling_service", name.partition("-")[0], *flags]
        roles.append(_Role(name, command, code, home, port))
    return roles


async def _begin(port: int) -> tuple[list[str], str]:
    """Start runs that outlast the benchmark; create a webhook that receives none of their events."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
        bodies = [{"iterations": 10_000, "model": {"name": f"run-{number}"}} for number in range(_RUNS)]
        replies = [await client.post("/learn-loop", json=body) for body in bodies]
        webhook = await client.post("/webhooks", json={"url": "http://127.0.0.1:9999/", "events": ["run.failed"]})
    return [str(reply.raise_for_status().json()["run_id"]) for reply in replies], str(
        webhook.raise_for_status().json()["id"]
    )


async def _restart(roles: list[_Role], restarts: int, every_s: float) -> list[float]:
    exits = []
    for role in itertools.islice(itertools.cycle(roles), restarts):
        pause = asyncio.create_task(asyncio.sleep(every_s))
        exits.append(await role.stop())
        role.start()
        await role.up()
        await pause
    return exits


async def _cancel_all(port: int, runs: list[str]) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
        for run_id in runs:
            (await client.post(f"/runs/{run_id}/cancel")).raise_for_status()
        async with asyncio.timeout(_CALM_S):
            for run_id in runs:
                while (await client.get(f"/runs/{run_id}")).json()["status"] != RunStatus.CANCELLED:
                    await asyncio.sleep(0.1)


async def _checked(database: Database) -> tuple[list[float], list[str]]:
    """Return the seconds of each handover, and all violations in the rows."""
    handovers, wrong = [], []
    async with database() as tx:
        for run in (await tx.scalars(select(Run))).all():
            events = (await tx.scalars(select(Event).where(Event.run_id == run.id).order_by(Event.seq))).all()
            saved = list(await tx.scalars(select(Iteration.iteration).where(Iteration.run_id == run.id)))
            if sorted(saved) != [*range(run.next_iteration)]:
                wrong.append(f"run {run.id} has the iterations {saved}")
            if [event.seq for event in events] != [*range(1, run.event_seq + 1)]:
                wrong.append(f"the events of run {run.id} have gaps")
            moves = [event for event in events if event.type in (EventType.RUN_RELEASED, EventType.RUN_STARTED)]
            if [event.type for event in moves] != [EventType.RUN_STARTED, EventType.RUN_RELEASED] * (
                len(moves) // 2
            ) + [EventType.RUN_STARTED]:
                wrong.append(f"run {run.id} was taken over without having been handed over")
            pairs = zip(moves[1::2], moves[2::2], strict=False)
            handovers += [(started.occurred_at - released.occurred_at).total_seconds() for released, started in pairs]
    return handovers, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--every", type=float, default=5.0, help="seconds")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    options = parser.parse_args()
    report(
        lambda directory: rolling_restart(
            directory, restarts=options.restarts, every_s=options.every, rate=options.rate
        )
    )


if __name__ == "__main__":
    main()
