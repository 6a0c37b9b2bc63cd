"""Freeze a worker past its lease in each phase, let another take over, then thaw the first one.

    python -m benchmarks.durability.zombies [--rounds 4] [--ttl 3]

Each round has a run for each point of `chaos_worker.POINTS`. There the worker stops its whole process with SIGSTOP; it
continues after another worker has taken over the run and saved the iteration. Then the database, the workers' history
and the trainer must show nothing by the first worker after the second one began (chaos_checks.py). Exits with 1
otherwise.
"""

import argparse
import signal
import time
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import update

from benchmarks.durability.chaos import create_run
from benchmarks.durability.chaos_checks import Story, audit, stories, violations
from benchmarks.durability.chaos_faults import open_forks, start_worker
from benchmarks.durability.chaos_worker import POINTS
from benchmarks.durability.harness import migrated, report, until
from benchmarks.forks import Forked
from benchmarks.frozen_code import freeze
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import TERMINAL
from learnloop_service.app.runs.store import RunStore

_FROZEN_IN = 1
"""The iteration in which the worker freezes."""
_PATIENCE_S = 60.0
_LANDED = ("trained", "publish")
"""Points that come after the first worker's training landed."""


async def zombies(directory: Path, *, rounds: int, ttl_s: float) -> dict[str, Any]:
    """Return figures and `violations`."""
    workers: list[Forked] = []
    async with migrated(directory) as store:
        forks = open_forks(freeze(directory), directory)
        try:
            await audit(store.database)
            for name, more in (("zombie", ["--freezes"]), ("heir", [])):
                flags: dict[str, float | str] = {"name": name, "engine": name, "ttl": ttl_s, "pace": 0.02}
                worker = start_worker(forks, store.postgres.url, directory, *more, concurrent=1, **flags)
                workers.append(worker)
            points = [(point, number) for number in range(rounds) for point in POINTS]
            seconds = [await _frozen_at(*moment, store.database, workers[0]) for moment in points]
            all_stories = await stories(store.database, directory)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            forks.close()
    wrong = [wrong for story in all_stories for wrong in (*violations(story), *_by_zombies(story))]
    return {
        "freezes": len(seconds),
        "ttl_s": ttl_s,
        "taken_over_after_s": [round(seconds_frozen, 1) for seconds_frozen in seconds],
        "claims": sum(story.run.epoch for story in all_stories),
        "violations": wrong,
    }


async def _frozen_at(point: str, number: int, database: Database, worker: Forked) -> float:
    """Drive one run whose first worker freezes at the point; return the seconds until it was taken over."""
    store = RunStore(database)
    run_id = await create_run(database, f"run-{number}-{point}", _FROZEN_IN + 1, engine="zombie")

    async def status() -> str:
        return psutil.Process(worker.pid).status()

    async def run() -> Run:
        return await store.get(run_id)

    await until(
        f"frozen at {point}", status, lambda process_status: process_status == psutil.STATUS_STOPPED, _PATIENCE_S
    )
    frozen = time.monotonic()
    await retry_while_database_is_down(lambda: _leave_to_heir(database, run_id))
    await until("taken over", run, lambda run: run.epoch > 1, _PATIENCE_S)
    seconds = time.monotonic() - frozen
    await until("the iteration is saved", run, lambda run: run.next_iteration > _FROZEN_IN, _PATIENCE_S)
    worker.send_signal(signal.SIGCONT)
    await until("ended", run, lambda run: run.status in TERMINAL, _PATIENCE_S)
    return seconds


async def _leave_to_heir(database: Database, run_id: str) -> None:
    """Hand the run over; blocks until the database ends a transaction in which the frozen worker holds the row."""
    async with database.begin() as tx:
        await tx.execute(update(Run).where(Run.id == run_id).values(engine="heir"))


def _by_zombies(story: Story) -> list[str]:
    """Describe steps that the first worker trained beyond what had landed before it froze."""
    landed = [_FROZEN_IN] if story.run.model_name.endswith(_LANDED) else []
    steps = [step for step, epoch in story.trained if epoch == 1]
    return [] if steps == landed else [f"{story.run.model_name}: the zombie trained the steps {steps}, not {landed}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ttl", type=float, default=3.0, help="seconds of a lease")
    options = parser.parse_args()
    report(lambda directory: zombies(directory, rounds=options.rounds, ttl_s=options.ttl))


if __name__ == "__main__":
    main()
