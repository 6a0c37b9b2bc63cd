"""Freeze a worker past its lease in each phase, let another take over, then thaw the first one.

    python -m benchmarks.durability.zombies [--rounds 4] [--ttl 3]

Each round has a run for each point of `chaos_worker.POINTS`. There the worker stops its whole process with SIGSTOP; it
continues after another worker has taken over the run and saved the iteration. Then the database, the workers' history
and the trainer must show nothing by the first worker after the second one began (chaos_checks.py). Exits with 1
otherwise.
"""

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import update

from app.aio.retry import retry_while_database_is_down
from app.db.database import Database
from app.db.tables import Run
from app.domain.run_state import TERMINAL
from app.runs.store import RunStore
from benchmarks import processes
from benchmarks.durability.chaos import create_run
from benchmarks.durability.chaos_checks import Story, audit, stories, violations
from benchmarks.durability.chaos_faults import open_forks, start_worker
from benchmarks.durability.chaos_worker import POINTS
from benchmarks.durability.harness import judge, migrated
from benchmarks.forks import Forked
from benchmarks.frozen_code import freeze

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
                given: dict[str, float | str] = {"name": name, "engine": name, "ttl": ttl_s, "pace": 0.02}
                worker = start_worker(forks, store.postgres.url, directory, *more, concurrent=1, **given)
                workers.append(worker)
            points = [(point, number) for number in range(rounds) for point in POINTS]
            seconds = [await _frozen_at(*each, store.database, workers[0]) for each in points]
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
        "taken_over_after_s": [round(each, 1) for each in seconds],
        "claims": sum(story.run.epoch for story in all_stories),
        "violations": wrong,
    }


async def _frozen_at(point: str, number: int, database: Database, worker: Forked) -> float:
    """Drive one run whose first worker freezes at the point; return the seconds until it was taken over."""
    store = RunStore(database)
    run_id = await create_run(database, f"run-{number}-{point}", _FROZEN_IN + 1, engine="zombie")
    await _until(f"frozen at {point}", lambda: _stopped(worker))
    frozen = time.monotonic()
    await retry_while_database_is_down(lambda: _leave_to_heir(database, run_id))

    async def run() -> Run:
        return await store.get(run_id)

    await _until("taken over", lambda: _is(run, lambda run: run.epoch > 1))
    seconds = time.monotonic() - frozen
    await _until("the iteration is saved", lambda: _is(run, lambda run: run.next_iteration > _FROZEN_IN))
    worker.send_signal(signal.SIGCONT)
    await _until("ended", lambda: _is(run, lambda run: run.status in TERMINAL))
    return seconds


async def _leave_to_heir(database: Database, run_id: str) -> None:
    """Hand the run over; blocks until the database ends a transaction in which the frozen worker holds the row."""
    async with database.begin() as tx:
        await tx.execute(update(Run).where(Run.id == run_id).values(engine="heir"))


async def _stopped(worker: Forked) -> bool:
    return psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED


async def _is(ask: Callable[[], Awaitable[Run]], wanted: Callable[[Run], bool]) -> bool:
    return wanted(await ask())


async def _until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds. Raises RuntimeError if that takes too long."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise RuntimeError(f"not within {_PATIENCE_S:.0f} s: {what}") from None


def _by_zombies(story: Story) -> list[str]:
    """Describe steps that the first worker trained beyond what had landed before it froze."""
    landed = [_FROZEN_IN] if story.run.model_name.endswith(_LANDED) else []
    taken = [step for step, epoch in story.trained if epoch == 1]
    return [] if taken == landed else [f"{story.run.model_name}: the zombie trained the steps {taken}, not {landed}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ttl", type=float, default=3.0, help="seconds of a lease")
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-zombies-") as directory:
        result = asyncio.run(zombies(Path(directory), rounds=options.rounds, ttl_s=options.ttl))
    judge(result | {"machine": machine}, {"violations": []})


if __name__ == "__main__":
    main()
