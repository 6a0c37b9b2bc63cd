"""Measure how long a project's webhooks take while very many deliveries of another project are pending.

    python -m benchmarks.service.noisy_webhooks [--pending 158000] [--endpoints 100] [--runs 20] [--seconds 30]

Uses one dispatcher process with the service's settings. The other project's receivers take 50 ms for each delivery.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import text
from ulid import ULID

from app.db.database import Database, make_database, make_engine
from app.db.migration import migrate
from app.db.tables import Run
from app.domain.event_types import EventType
from app.events.feed import EventFeed
from app.events.log import append
from app.processes.postgres import EmbeddedPostgres
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.endpoints import Endpoints
from app.webhooks.sender import Sender
from benchmarks.durability.webhook_dispatcher import BOX, GUARD

_EVERY_S = 1.0
_FILL = """
    INSERT INTO webhook_delivery (id, run_id, endpoint_id, project, receiver, is_next, event_seq, event_type, url, body,
        state, attempts)
    SELECT md5(random()::text || n)::char(26), run_id, endpoint_id, 'noisy', endpoint_id, n = 1, n, 'phase.completed',
        url, '{"filler": true}', 'pending', 0
    FROM unnest(CAST(:runs AS text[])) AS run_id, unnest(CAST(:endpoints AS text[])) AS endpoint_id,
        generate_series(1, :depth) AS n, (SELECT CAST(:url AS text) AS url) AS receiver
"""


class SlowReceiver:
    """Takes 50 ms for each noisy delivery, and records when the quiet project's events arrive."""

    def __init__(self) -> None:
        self.arrived: dict[int, float] = {}
        self.others = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length"))
        body = json.loads(await reader.readexactly(length))
        if "number" in body:
            self.arrived[body["number"]] = time.monotonic()
        else:
            self.others += 1
            await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Create the deliveries, dispatch them, and print the latencies of the quiet project's events."""
    postgres = EmbeddedPostgres(folder)
    await postgres.start()
    database_engine = make_engine(postgres.url)
    receiver = SlowReceiver()
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        await migrate(database_engine)
        database = make_database(database_engine)
        quiet = await _filled(database, url, options)
        dispatcher = Dispatcher(database, Sender(BOX, GUARD))
        feed = EventFeed(database, postgres.url, on_hint=dispatcher.wake)
        feed.start()
        dispatcher.start()
        committed: dict[int, float] = {}
        for number in range(round(options.seconds / _EVERY_S)):
            async with database.begin() as tx:
                await append(tx, quiet, EventType.PHASE_COMPLETED, "local", {"number": number})
            committed[number] = time.monotonic()
            await asyncio.sleep(_EVERY_S)
        ending = time.monotonic() + options.patience
        while len(receiver.arrived) < len(committed) and time.monotonic() < ending:
            await asyncio.sleep(0.1)
        now = time.monotonic()
        waits = sorted(receiver.arrived.get(number, now) - at for number, at in committed.items())
        print(
            f"{len(receiver.arrived)} of {len(committed)} arrived; p50 {statistics.median(waits):.2f} s, longest "
            f"{waits[-1]:.2f} s; meanwhile {receiver.others:,} of the other project's {options.pending:,} were sent"
        )
        await dispatcher.close(grace_s=0)
        await feed.close()
    finally:
        server.close()
        await database_engine.dispose()
        await postgres.stop()


async def _filled(database: Database, url: str, options: argparse.Namespace) -> str:
    """Create the noisy project's deliveries; return the quiet project's run, which has an endpoint."""
    endpoints = Endpoints(database, BOX, GUARD)
    quiet, runs = str(ULID()), [str(ULID()) for _ in range(options.runs)]
    async with database.begin() as tx:
        for project, id in [("quiet", quiet), *(("noisy", run) for run in runs)]:
            tx.add(
                Run(
                    id=id,
                    request={},
                    environment="e",
                    judge="j",
                    backend="b",
                    model_project=project,
                    model_name=id,
                    base_model="t",
                    iterations_total=1,
                )
            )
        endpoints._add(tx, url, (), "quiet", None)
        noisy = [endpoints._add(tx, url, (), "noisy", None).row.id for _ in range(options.endpoints)]
    depth = options.pending // (options.runs * options.endpoints)
    for endpoint_id in noisy:  # one statement each, because statements have a time limit
        given = {"runs": runs, "endpoints": [endpoint_id], "depth": depth, "url": url}
        async with database.begin() as tx:
            await tx.execute(text(_FILL), given)
    return quiet


def main() -> None:
    """Run the measurement once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=158_000)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the quiet project has events")
    parser.add_argument("--patience", type=float, default=120.0, help="how long late ones are waited for")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()
