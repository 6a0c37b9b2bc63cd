"""Measure what a scrape of `GET /metrics` costs in milliseconds, bytes and series, with 10,000 runs in the database.

    python -m benchmarks.service.metrics [--runs 10000] [--scrapes 200]

The service is real and has its own Postgres; nothing is trained. Each run has 20 events and 4 webhook deliveries; a
tenth of the runs have a pending delivery, a hundredth are queued. Every route is requested once first, so that it has
series.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.database import Database, make_database, make_engine
from app.logs import configure_logs
from app.main import create_app
from app.metrics import database
from app.processes.postgres import EmbeddedPostgres
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fakes.stored_request import stored_request
from tests.integration.app.served import served, settings_for

_FILL = (
    """
    INSERT INTO run (id, status, request, environment, judge, backend, model_project, model_name, base_model,
        cancel_requested, iterations_total, next_iteration, rollouts, prompt_tokens, completion_tokens, event_seq)
    SELECT 'R' || lpad(CAST(n AS text), 25, '0'),
        CASE WHEN n % 100 = 0 THEN 'queued' WHEN n % 7 = 0 THEN 'failed' ELSE 'completed' END,
        CAST(:request AS jsonb), 'email_search', 'reference', 'embedded', 'p', 'm' || n, 'tiny',
        false, 14, 15, 1000, 1, 1, 20
    FROM generate_series(1, :runs) n
    """,
    """
    INSERT INTO event (run_id, seq, type, version, actor, data)
    SELECT run.id, seq, 'phase.completed', 1, 'worker:a', '{}' FROM run, generate_series(1, 20) seq
    """,
    """
    INSERT INTO webhook_delivery (id, run_id, project, receiver, is_next, event_seq, url, body, state, attempts,
        next_attempt_at)
    SELECT substr(md5(run.id || n), 1, 26), run.id, 'p', 'r', false, n, 'http://127.0.0.1:9/', repeat('x', 500),
        CASE WHEN n = 4 AND run.id LIKE '%5' THEN 'pending' ELSE 'delivered' END, 0, now() + interval '1 day'
    FROM run, generate_series(1, 4) n
    """,
    "VACUUM ANALYZE",
)


async def fill(database: AsyncEngine, runs: int) -> None:
    """Insert the rows, then VACUUM as autovacuum soon would."""
    async with database.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(text("SET statement_timeout = 0"))
        for statement in _FILL:
            values = {"runs": runs, "request": json.dumps(stored_request())} if ":runs" in statement else {}
            await connection.execute(text(statement), values)


async def _touch_routes(client: httpx.AsyncClient, paths: list[str]) -> None:
    for path in paths:
        await client.get(path.replace("{", "x").replace("}", "x"))


async def _milliseconds(count: int, ask: httpx.AsyncClient | Database) -> tuple[list[float], float]:
    """Return the milliseconds of each scrape, and the mean CPU time of this process (both service and client)."""
    taken, cpu = [], time.process_time()
    for _ in range(count):
        started = time.perf_counter()
        if isinstance(ask, httpx.AsyncClient):
            (await ask.get("/metrics")).raise_for_status()
        else:
            await database.read(ask)
        taken.append(1e3 * (time.perf_counter() - started))
    return taken, 1e3 * (time.process_time() - cpu) / count


def _told(name: str, found: tuple[list[float], float]) -> str:
    cuts = statistics.quantiles(found[0], n=100, method="inclusive")
    return f"{name:<28} p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms   CPU {found[1]:6.2f} ms"


async def measure(directory: Path, runs: int, scrapes: int) -> None:
    """Print the costs without runs and with them."""
    (directory / "database").mkdir()
    postgres = EmbeddedPostgres(directory / "database")
    await postgres.start()
    try:
        url = postgres.url.render_as_string(hide_password=False)
        settings = settings_for(directory / "service", url, max_concurrent_runs=0, log_level="error")
        engine = make_engine(postgres.url)
        database = make_database(engine)
        async with served(settings, ScriptedLoop()) as client:
            empty = await _milliseconds(scrapes, client)
            await fill(engine, runs)
            await _touch_routes(client, [*create_app(settings).openapi()["paths"]])
            full = await _milliseconds(scrapes, client)
            alone = await _milliseconds(scrapes, database)
            page = (await client.get("/metrics")).text
        await engine.dispose()
    finally:
        await postgres.stop()
    series = sum(not line.startswith("#") for line in page.splitlines())
    print(_told("a scrape, no runs", empty))
    print(_told(f"a scrape, {runs:,} runs", full))
    print(_told("the database's part of it", alone))
    print(f"{len(page):,} bytes, {series:,} series")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--scrapes", type=int, default=200)
    options = parser.parse_args()
    configure_logs("error", "console")
    with tempfile.TemporaryDirectory(prefix="learnloop-metrics-") as name:
        asyncio.run(measure(Path(name), options.runs, options.scrapes))


if __name__ == "__main__":
    main()
