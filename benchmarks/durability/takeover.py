"""Measure how long a run stalls when its worker is killed.

    python -m benchmarks.durability.takeover [--kills 5] [--ttl 6] [--seed 0]

Uses a real Postgres, one run and three real workers. The worker that drives the run is killed with SIGKILL at a random
moment. Measures the time until another worker has claimed the run, and until that worker's first journal entry. A new
worker then replaces the killed one. Exits with 1 if a claim came more than 2 s after the lease's time.
"""

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select

from benchmarks import processes
from benchmarks.durability.chaos import create_run
from benchmarks.durability.chaos_faults import Workers
from benchmarks.durability.harness import migrated, until
from benchmarks.frozen_code import freeze
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Journal, Run
from learnloop_service.app.domain.run_state import RunStatus

_ITERATIONS = 10_000
"""More iterations than the run can finish."""
_MOST_S = 60.0
_BEYOND_S = 2.0
"""Time that a takeover can take beyond the lease."""


async def takeovers(directory: Path, *, kills: int, ttl_s: float, rng: random.Random) -> list[tuple[float, float]]:
    """Return, for each kill, the seconds until the run was claimed and until its next journal entry."""
    async with migrated(directory) as store:
        workers = Workers(store.postgres.url, freeze(directory), directory, 3, ttl_s, pace_s=0.05, concurrent=1)
        try:
            run_id = await create_run(store.database, "run-0", _ITERATIONS)
            workers.mend()
            return [await _one(store.database, run_id, workers, rng.uniform(0, ttl_s)) for _ in range(kills)]
        finally:
            workers.close()


async def _one(database: Database, run_id: str, workers: Workers, after_s: float) -> tuple[float, float]:
    async def run() -> Run:
        async with database() as tx:
            return await tx.get_one(Run, run_id)

    async def entries() -> int:
        """Count the journal entries of the newest epoch."""
        query = select(func.count()).select_from(Journal).join(Run, Run.id == Journal.run_id)
        async with database() as tx:
            return await tx.scalar(query.where(Journal.epoch == Run.epoch)) or 0

    await until("it runs", run, lambda run: run.status == RunStatus.RUNNING, _MOST_S)
    await asyncio.sleep(after_s)
    owned = await run()
    workers.alive[str(owned.owner)].kill()
    killed = time.monotonic()
    await until("taken over", run, lambda run: run.epoch > owned.epoch, _MOST_S)
    claimed_s = time.monotonic() - killed
    await until("an entry", entries, bool, _MOST_S)
    kept_s = time.monotonic() - killed
    workers.alive[str(owned.owner)].wait()
    workers.mend()
    return claimed_s, kept_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--ttl", type=float, default=6.0, help="seconds of a lease")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"machine {processes.machine()}, seed {options.seed}, leases of {options.ttl} s")
    with tempfile.TemporaryDirectory(prefix="learnloop-takeover-") as directory:
        measuring = takeovers(Path(directory), kills=options.kills, ttl_s=options.ttl, rng=random.Random(options.seed))
        seconds = asyncio.run(measuring)
    for claimed_s, kept_s in seconds:
        print(f"claimed after {claimed_s:5.2f} s, first entry after {kept_s:5.2f} s")
    late = [claimed_s for claimed_s, _ in seconds if claimed_s > options.ttl + _BEYOND_S]
    print(
        f"most: {max(claimed_s for claimed_s, _ in seconds):.2f} s; later than {options.ttl + _BEYOND_S} s: {len(late)}"
    )
    raise SystemExit(1 if late else 0)


if __name__ == "__main__":
    main()
