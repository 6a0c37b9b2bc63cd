"""Stream one run's events while services repeatedly lose their database connections and clients hang up.

    python -m benchmarks.service.streams [--clients 200] [--events 100] [--cuts 2] [--drops 0.03] [--seed 0]

Two `learnloop serve` share one Postgres. Each client follows the run to its end; after each event it hangs up with
probability `--drops` and reconnects to either service with `Last-Event-ID`. Each cut ends every database connection of
the services. Exits with 1 if a client does not see each event once and in order, or if nothing was ever cut or dropped.
Times are from an event's commit until a client has it, including all reconnects; the goal is 500 ms for 99 of 100.
"""

import argparse
import asyncio
import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from benchmarks.durability.chaos_faults import cut_connections
from benchmarks.durability.harness import add_event, idle_run, migrated, report, serving
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import Database
from learnloop_service.app.runs.store import RunStore

_REPLICAS = 2
_END = b"event: run.cancelled"
_AGAIN_S = 0.05
_PAUSE_S = 0.1
"""Pause between two events."""
_PATIENCE_S = 120.0
"""Longest wait for all clients to have seen all events."""


@dataclass
class Client:
    """Follows a run; `numbers` are those of the events, in order of arrival, `at` the first arrival of each."""

    ports: list[int]
    run_id: str
    drops: float
    rng: random.Random
    numbers: list[int] = field(default_factory=list)
    at: dict[int, float] = field(default_factory=dict)
    connections: int = 0
    dropped: int = 0

    async def follow(self) -> None:
        """Reconnect until the end of the run was seen."""
        while not await self._one_connection():
            await asyncio.sleep(_AGAIN_S)

    async def _one_connection(self) -> bool:
        """Read one connection; return whether the end was seen.

        It uses no HTTP library, so that the load of the clients hardly affects the measurement.
        """
        self.connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.rng.choice(self.ports))
        try:
            last = f"Last-Event-ID: {self.numbers[-1]}\r\n" if self.numbers else ""
            head = f"GET /runs/{self.run_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            writer.write(f"{head}{last}\r\n".encode())
            status = (await reader.readline()).split()[1:2]
            if status != [b"200"]:  # 503 after the service's database connections were cut
                return status == [b"204"]
            return await self._read(reader)
        except OSError:
            return False
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        over = False
        while line := await reader.readline():
            if line.startswith(b"id: "):
                seq = int(line[4:])
                self.numbers.append(seq)
                self.at.setdefault(seq, time.monotonic())
            over |= line.startswith(_END)
            if line.startswith(b"data: "):
                if over:
                    return True
                if self.rng.random() < self.drops:
                    self.dropped += 1
                    return False
        return False


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return counts, times and `violations`."""
    async with migrated(directory) as store:
        with ExitStack() as stack:
            ports = await asyncio.to_thread(_replicas, stack, directory, store.url)
            return await _stream(store.database, store.postgres.url, ports, options)


def _replicas(stack: ExitStack, directory: Path, url: str) -> list[int]:
    """Start the services; return their ports once they answer."""
    settings = {
        "DATABASE_URL": url,
        "LEARNLOOP_ENGINE_URL": "http://127.0.0.1:9",  # nothing is trained here
        "LEARNLOOP_MAX_CONCURRENT_RUNS": "0",
    }
    ports = [free_port() for _ in range(_REPLICAS)]
    for port in ports:
        stack.enter_context(serving(directory / str(port), port, settings))
    return ports


async def _stream(database: Database, url: URL, ports: list[int], options: argparse.Namespace) -> dict[str, Any]:
    run_id = await idle_run(database, "bench")
    clients = [
        Client(ports, run_id, options.drops, random.Random(f"{options.seed} {number}"))
        for number in range(options.clients)
    ]
    cuts, committed = 0, {}
    cut_at = {round(options.events * (number + 1) / (options.cuts + 1)) for number in range(options.cuts)}
    async with asyncio.timeout(_PATIENCE_S + options.events), asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.follow())
        while not all(client.numbers for client in clients):
            await asyncio.sleep(_AGAIN_S)
        for number in range(options.events):
            if number in cut_at:
                cuts += await cut_connections(url)
            committed[await retry_while_database_is_down(lambda: add_event(database, run_id))] = time.monotonic()
            await asyncio.sleep(_PAUSE_S)
        await retry_while_database_is_down(lambda: RunStore(database).cancel(run_id, "bench"))
    return _figures(clients, committed, cuts, options)


def _figures(
    clients: list[Client], committed: dict[int, float], cuts: int, options: argparse.Namespace
) -> dict[str, Any]:
    expected = [*range(1, max(committed) + 2)]  # run.created before the events, run.cancelled after them
    wrong = [f"client {n} saw {client.numbers}" for n, client in enumerate(clients) if client.numbers != expected]
    dropped = sum(client.dropped for client in clients)
    if options.cuts and not cuts:
        wrong.append("nothing was cut")
    if options.drops and not dropped:
        wrong.append("no client ever hung up")
    delays = sorted(
        1e3 * max(0.0, client.at[seq] - at) for client in clients for seq, at in committed.items() if seq in client.at
    )
    cut_points = statistics.quantiles(delays, n=100, method="inclusive")
    return {
        "seed": options.seed,
        "clients": len(clients),
        "events": len(committed),
        "seen": sum(len(client.numbers) for client in clients),
        "cut_connections": cuts,
        "hung_up": dropped,
        "connections": sum(client.connections for client in clients),
        "p50_ms": round(cut_points[49], 1),
        "p99_ms": round(cut_points[98], 1),
        "max_ms": round(delays[-1], 1),
        "violations": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=2)
    parser.add_argument("--drops", type=float, default=0.03, help="the probability after each event")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report(lambda directory: measure(directory, options))


if __name__ == "__main__":
    main()
