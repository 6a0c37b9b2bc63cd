"""Measure how hostile clients of the HTTP interface affect other clients.

    python -m benchmarks.service.hostile_http [NAME...] [--seconds 8] [--json]

Each attack of benchmarks/service/hostile_clients.py hits a fresh `learnloop serve` that requires keys and can open
1,024 files. Meanwhile another client sends `GET /health/live` and, with a key of another project, `GET /runs/{id}` ten
times a second each, on new connections, whether or not earlier requests were answered. Prints its waits in
milliseconds, and the resident memory of the service at its peak and 3 s after the attack.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from sqlalchemy import insert, update

from app.auth.keys import Keys
from app.auth.scopes import Scope
from app.cli.client import Service
from app.cli.service_process import free_port
from app.db.database import Database, make_database, make_engine
from app.db.migration import migrate
from app.db.tables import Iteration, Run, Trajectory
from app.processes.postgres import EmbeddedPostgres
from benchmarks import processes
from benchmarks.service.hostile_clients import ATTACKS, open_as_many_files
from environment.json_type import Json
from tests.integration.app.emails import email, make_run

_FILES = 1_024
"""The usual soft limit of open files."""
_EVERY_S = 0.1
_ANSWER_S = 30.0
_MEMORY_PAUSE_S = 0.1
_SETTLE_S = 3.0
_ITERATIONS = 8
_TRAJECTORIES = 300
"""Trajectories in each iteration of the run that is verified."""


@dataclass(frozen=True)
class Stage:
    """Two projects in one database: the attacker's with a big run, and a bystander's."""

    key: str
    run_id: str
    bystander_key: str
    bystander_run: str


@dataclass
class Waits:
    """Waiting times of a bystander's requests."""

    taken_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def figures(self) -> Json:
        every = sorted(self.taken_ms) or [float("nan")]
        cuts = statistics.quantiles(every, n=100, method="inclusive") if len(every) > 1 else every * 99
        return {
            "p50_ms": round(cuts[49], 1),
            "p99_ms": round(cuts[98], 1),
            "max_ms": round(every[-1], 1),
            "failed": self.failed,
        }


async def ask_meanwhile(port: int, path: str, key: str | None, over: asyncio.Event) -> Waits:
    """Send requests on a schedule until the attack is over, then wait for those still open."""
    waits, asked = Waits(), set()
    while not over.is_set():
        asked.add(asyncio.create_task(_ask(port, path, key, waits)))
        await asyncio.sleep(_EVERY_S)
    await asyncio.wait(asked)
    return waits


async def _ask(port: int, path: str, key: str | None, waits: Waits) -> None:
    began, writer = time.monotonic(), None
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Connection: close\r\n\r\n".encode())
            answered = (await reader.read()).startswith(b"HTTP/1.1 200")
    except (OSError, TimeoutError):
        answered = False
    finally:
        if writer is not None:
            writer.close()
    if answered:
        waits.taken_ms.append(1e3 * (time.monotonic() - began))
    else:
        waits.failed += 1


async def attacked(name: str, port: int, child: "subprocess.Popen[bytes]", stage: Stage, seconds: float) -> Json:
    """Run one attack and return its figures."""
    memory = Memory(psutil.Process(child.pid))
    over = asyncio.Event()
    asking = [
        asyncio.create_task(ask_meanwhile(port, path, key, over))
        for path, key in (("/health/live", None), (f"/runs/{stage.bystander_run}", stage.bystander_key))
    ]
    command = ["-m", "benchmarks.service.hostile_clients", name, str(port), str(seconds), stage.key, stage.run_id]
    attack = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    found, _ = await attack.communicate()
    over.set()
    live, runs = [(await waits).figures() for waits in asking]
    await asyncio.sleep(_SETTLE_S)
    return {
        "attack": name,
        "live": live,
        "runs": runs,
        "peak_mb": round(memory.stop()),
        "mb_after": round(memory.now_mb()),
        "found": json.loads(found),
    }


class Memory:
    """Samples a process's resident memory and keeps the peak."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._peak = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def now_mb(self) -> float:
        return float(self._process.memory_info().rss / 1e6)

    def stop(self) -> float:
        """Stop sampling and return the peak in MB."""
        self._over.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._over.wait(_MEMORY_PAUSE_S):
            self._peak = max(self._peak, self.now_mb())


async def prepared(database: Database) -> Stage:
    """Create the keys and runs."""
    keys = Keys(database)
    scopes = [Scope.READ, Scope.WRITE]
    attacker = await keys.create(project="hostile", name="attacker", scopes=scopes)
    bystander = await keys.create(project="calm", name="bystander", scopes=scopes)
    run_id = await make_run(database, environment="email_search", project="hostile")
    async with database.begin() as tx:
        await tx.execute(update(Run).where(Run.id == run_id).values(next_iteration=_ITERATIONS))
        await tx.execute(insert(Iteration), [_iteration(run_id, number) for number in range(_ITERATIONS)])
        for number in range(_ITERATIONS):
            rows = [_trajectory(run_id, number, each) for each in range(_TRAJECTORIES)]
            await tx.execute(insert(Trajectory), rows)
    calm = await make_run(database, environment="email_search", project="calm")
    return Stage(attacker.key, run_id, bystander.key, calm)


def _iteration(run_id: str, number: int) -> Json:
    nothing = dict.fromkeys(("reward_mean", "reward_median", "reward_min", "reward_max", "success", "malformed"))
    timing = {"prompt_tokens": 1, "completion_tokens": 1}
    counts = {"step": number, "best_step": 0, "reward_count": 0, "failed_rollouts": 0}
    more = {"skipped_groups": {}, "train_metrics": {}, "timing": timing}
    return {"run_id": run_id, "iteration": number, **nothing, **counts, **more}


def _trajectory(run_id: str, iteration: int, number: int) -> Json:
    question = {"question": "what? " * 300, "inbox_address": "a@b.c", "query_date": "2026-01-01"}
    return {
        "id": f"{run_id}-{iteration}-{number}",
        "run_id": run_id,
        "kind": "train",
        "iteration": iteration,
        "split": "train",
        "mode": "sampled",
        "model": "hostile/a",
        "scenario_id": f"train.{number // 8}",
        "scenario": {"task": question, "reference": {"answer": "that"}},
        "messages": [{"role": "user", "content": "a question"}],
        "tools": [],
        "outcome": email() | {"answer": "that", "finish": "answered"},
        "score": number % 2,
        "score_parts": {},
        "reward_parts": {},
        "turns": 3,
        "prompt_tokens": 10,
        "completion_tokens": 10,
        "seconds": 0.1,
        "started_at": datetime.now(UTC),
    }


async def measure(names: Sequence[str], directory: Path, seconds: float) -> list[Json]:
    """Run each attack on a new service over the same database."""
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    database_engine = make_engine(postgres.url)
    try:
        await migrate(database_engine)
        stage = await prepared(make_database(database_engine))
        return [await _measured(name, directory, postgres, stage, seconds) for name in names]
    finally:
        await database_engine.dispose()
        await postgres.stop()


async def _measured(name: str, directory: Path, postgres: EmbeddedPostgres, stage: Stage, seconds: float) -> Json:
    port = free_port()
    settings = processes.database_only(postgres.url)
    data_dir = directory / name
    data_dir.mkdir()
    open_as_many_files(_FILES)
    with processes.service(data_dir, port, **settings) as child:
        with Service(f"http://127.0.0.1:{port}") as client:
            await asyncio.to_thread(processes.wait_for, child, processes.answers(client))
        open_as_many_files(None)
        await asyncio.sleep(_SETTLE_S)  # wait for the service's late imports
        result = await attacked(name, port, child, stage, seconds)
        print(f"{name}: done", file=sys.stderr)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[[], *ATTACKS], help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        results = asyncio.run(measure(options.names or list(ATTACKS), Path(directory), options.seconds))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'attack':>18}  {'health p50':>10} {'p99':>8}  {'runs p50':>9} {'p99':>8}  failed  peak MB  after")
    for row in results:
        live, runs = row["live"], row["runs"]
        waits = f"{live['p50_ms']:>10} {live['p99_ms']:>8}  {runs['p50_ms']:>9} {runs['p99_ms']:>8}"
        failed = live["failed"] + runs["failed"]
        print(f"{row['attack']:>18}  {waits}  {failed:>6}  {row['peak_mb']:>7}  {row['mb_after']:>5}  {row['found']}")


if __name__ == "__main__":
    main()
