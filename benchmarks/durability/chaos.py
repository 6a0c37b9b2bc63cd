"""Kill workers and their database at random while runs are in progress, then check that nothing was lost.

    python -m benchmarks.durability.chaos [--seed 0] [--seeds 1] [--runs 20] [--iterations 60] [--minutes 10]
                                       [--poison 0]

A real Postgres and three real worker processes with leases of 3 s suffer faults until every run has ended, for at most
`--minutes`. Then the faults stop, the remaining runs finish, and chaos_checks.py looks for violations. `--seeds`
repeats this with consecutive seeds, each on a new database. The workers run a snapshot of the code, taken at the start.
Exits with 1 if there is a violation or if some kind of fault was never injected.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, func, select

from benchmarks import processes
from benchmarks.durability.chaos_checks import Story, audit, stories, violations
from benchmarks.durability.chaos_faults import FAULTS, Nemesis, Workers
from benchmarks.durability.chaos_worker import POISON
from benchmarks.durability.harness import judge, migrated, until
from benchmarks.frozen_code import freeze
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import LIVE
from learnloop_service.app.runs.store import RunStore
from learnloop_service.training.types import RunConfig
from tests.fakes.stored_request import stored_run

TTL_S = 3.0
_WORKERS = 3
_CALM_S = 180.0
"""Longest wait for the runs to end once faults have stopped."""
_COUNTED = ("iterations_saved", "events", "claims", "rollouts_done", "rollouts_kept", "trained_steps")


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs to drive and the faults to inject. Times are in seconds."""

    seed: int
    runs: int
    iterations: int
    """Iterations of each run, not counting the baseline."""
    faults_s: float
    """Time limit for faults, extended on slow machines until each kind of fault was injected."""
    pause_s: float = 1.5
    """Average pause between two faults."""
    pace_s: float = 0.05
    """Average duration of a rollout."""
    poison: int = 0
    """Number of additional runs that kill their workers."""


async def chaos(plan: Plan, directory: Path) -> dict[str, Any]:
    """Return figures and `violations`, the broken promises."""
    runs_per_worker = (
        plan.runs + plan.poison
    ) // _WORKERS + 1  # spare capacity for takeovers, but no worker can hold every run
    code = freeze(directory)
    async with migrated(directory) as store:
        workers = Workers(store.postgres.url, code, directory, _WORKERS, TTL_S, plan.pace_s, concurrent=runs_per_worker)
        try:
            await audit(store.database)
            for number in range(plan.runs + plan.poison):
                poison = number >= plan.runs
                await create_run(store.database, f"{POISON if poison else 'run'}-{number}", plan.iterations)
            nemesis = Nemesis(workers, store.postgres, random.Random(plan.seed))
            seconds = await _disturbed(plan, workers, nemesis, store.database)
            calm_s = await _calm(workers, nemesis, store.database)
            all_stories = await stories(store.database, directory)
        finally:
            workers.close()
    never = [f"the fault {kind} was never injected" for kind in FAULTS if not nemesis.injected[kind]]
    figures = {"seconds": round(seconds, 1), "calm_s": round(calm_s, 1), "workers_started": workers.started}
    wrong = [wrong for story in all_stories for wrong in violations(story)]
    checked = {"faults": dict(nemesis.injected)} | _counts(all_stories) | {"violations": wrong + never}
    return asdict(plan) | figures | checked


async def create_run(database: Database, name: str, iterations: int, engine: str | None = None) -> str:
    """Create a queued run of the model `name` for this benchmark's workers; return its id."""
    request = asdict(RunConfig(iterations=iterations)) | {
        "environment": {"name": "email_search", "config": {}},
        "judge": {"name": "reference", "config": {}},
        "model": {"project": "chaos", "name": name, "base_model": "none"},
    }
    names = {"model_project": "chaos", "model_name": name, "base_model": "none"}
    run = stored_run(request=request, engine=engine, iterations_total=iterations, **names)
    await RunStore(database).create(run)
    return run.id


async def _disturbed(plan: Plan, workers: Workers, nemesis: Nemesis, database: Database) -> float:
    """Inject faults until every run has ended, or until time is up and each kind of fault was injected.

    Returns the seconds since the first claim.
    """
    pauses = random.Random(plan.seed + 1)
    workers.mend()
    # An earlier fault would have nothing to hit.
    await until("a claim", lambda: _count(database, Run.epoch > 0), bool, _CALM_S)
    started = time.monotonic()
    while ((seconds := time.monotonic() - started) < plan.faults_s or nemesis.missing) and await _unfinished(database):
        workers.mend()
        await asyncio.sleep(plan.pause_s * pauses.uniform(0.3, 1.7))
        await nemesis.strike()
    return seconds


async def _calm(workers: Workers, nemesis: Nemesis, database: Database) -> float:
    """Wait without faults until all runs have ended; return the seconds that took."""
    await nemesis.rest()
    started = time.monotonic()
    while await _unfinished(database) and time.monotonic() - started < _CALM_S:
        workers.mend()
        await asyncio.sleep(0.2)
    return time.monotonic() - started


async def _unfinished(database: Database) -> int:
    return await _count(database, Run.status.in_(LIVE))


async def _count(database: Database, runs: ColumnElement[bool]) -> int:
    async def count() -> int:
        async with database() as tx:
            return await tx.scalar(select(func.count()).where(runs)) or 0

    return await retry_while_database_is_down(count)


def _counts(all_stories: list[Story]) -> dict[str, Any]:
    rollouts = [act for story in all_stories for act in story.acts if act["act"].startswith("rollout/")]
    counts = (
        sum(len(story.iterations) for story in all_stories),
        sum(len(story.events) for story in all_stories),
        sum(story.run.epoch for story in all_stories),
        len(rollouts),
        sum(entry.name.startswith("rollout/") for story in all_stories for entry in story.entries),
        sum(len(story.trained) for story in all_stories),
    )
    return dict(zip(_COUNTED, counts, strict=True))


def _sums(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the figures of several seeds."""
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result["faults"])
    counted = {name: sum(result[name] for result in results) for name in (*_COUNTED, "workers_started")}
    wrong = [f"seed {result['seed']}: {wrong}" for result in results for wrong in result["violations"]]
    return {"seeds": [result["seed"] for result in results], "faults": dict(faults)} | counted | {"violations": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults for each seed, at most")
    parser.add_argument("--poison", type=int, default=0, help="runs more, that kill their workers")
    options = parser.parse_args()
    plan = Plan(options.seed, options.runs, options.iterations, 60 * options.minutes, poison=options.poison)
    results = []
    for seed in range(plan.seed, plan.seed + options.seeds):
        machine = processes.machine()
        with tempfile.TemporaryDirectory(prefix="learnloop-chaos-") as directory:
            result = asyncio.run(chaos(replace(plan, seed=seed), Path(directory))) | {"machine": machine}
        print(json.dumps(result, indent=2), flush=True)
        results.append(result)
    judge(_sums(results), {"violations": []})


if __name__ == "__main__":
    main()
