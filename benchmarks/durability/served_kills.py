"""Kill a service and its engine with SIGKILL again and again while runs learn from served answers.

    python -m benchmarks.durability.served_kills [--kills 200] [--iterations 16]

A Postgres that is not killed has the sessions of simulated users, which were answered over HTTP. The same run on them
takes place once undisturbed, and then again and again, each time as a new model, until there were that many kills: a
random time after a run was seen to progress, the service and its engine are killed together, or, every third time, the
engine alone. All runs must end with the same SHA-256 of the weights, the same estimates, and with each answer trained
on exactly once. Prints the hashes, and which phases the kills hit.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from benchmarks import processes
from benchmarks.durability.harness import Serving, Watched, database, ended, judge, serving, workplace
from benchmarks.durability.kills import where
from benchmarks.learning.served_sessions import NAME, Ask, Stage
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

_USERS = 320
_MOST_S = 900.0
_SETTINGS = {"LEARNLOOP_LEASE_S": "8", "LEARNLOOP_RATE_PER_S": "0"}
_ENGINE_ALONE = 3
"""Every how many kills only the engine is killed."""
_SAME = ("served_answers", "served_withdrawn", "served_damaged", "served_gain", "served_gain_low", "served_kl", "loss")
"""Training metrics of an iteration that must not depend on kills."""


@dataclass
class Learning:
    """Runs on the same answers, whose service is killed up to `kills` times in all."""

    data_dir: Path
    database_url: str
    iterations: int
    chance: random.Random
    between_s: float
    kills: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def learned(self, name: str, kills: int) -> Json:
        """Learn as a new model of that name, and return what must not depend on kills."""
        port, path, last = free_port(), "", None
        while True:
            with self._serving(port) as it:
                path = path or f"/runs/{self._start(it.client, name)}"
                watched = Watched(it.client, path)
                while True:
                    run = watched.wait_until(self._moved_since(last), _MOST_S)
                    assert run is not None, f"it does not move on: {watched.now()}"
                    pause_s = self.chance.uniform(0.0, self.between_s) if self.kills < kills else _MOST_S
                    run = watched.wait_until(ended, pause_s) or run
                    if ended(run):
                        return self._account(watched.completed(), name)
                    last = where(run)
                    self.hits[str(run["progress"]["phase"])] += 1
                    self.kills += 1
                    if self.kills % _ENGINE_ALONE:
                        it.kill()
                        break
                    _kill_engine(it)

    def _serving(self, port: int) -> AbstractContextManager[Serving]:
        return serving(self.data_dir, port, {"DATABASE_URL": self.database_url, **_SETTINGS}, timeout_s=30)

    def _start(self, service: Service, name: str) -> str:
        sessions = {"model": NAME, "train_on": "answers", "outcome": {"value": "resolved"}}
        model = {"project": "bench", "name": name}
        request = {"source": {"sessions": sessions}, "model": model, "iterations": self.iterations}
        return str(service.call("POST", "/learn-loop", json=request)["run_id"])

    def _moved_since(self, last: Json) -> Callable[[Json], object]:
        return lambda run: ended(run) or (run["progress"]["iteration"] and where(run) != last)

    def _account(self, run: Json, name: str) -> Json:
        query = "SELECT iteration, step, train_metrics FROM iteration WHERE run_id = %s ORDER BY iteration"
        with psycopg.connect(self.database_url) as connection:
            rows = connection.execute(query, (run["run_id"],)).fetchall()
        saved = [[number, step, {name: metrics.get(name) for name in _SAME}] for number, step, metrics in rows]
        trained = sum(metrics["served_answers"] or 0 for _, _, metrics in saved)
        return {
            "weights": weights(self.data_dir, f"bench/{name}"),
            "trained_answers": trained,
            "iterations": saved,
        }


def _kill_engine(it: Serving) -> None:
    for child in psutil.Process(it.child.pid).children(recursive=True):
        if "learnloop_service.training.engine" in child.cmdline():
            child.kill()


def weights(data_dir: Path, model: str) -> str | None:
    """Return the SHA-256 of the weights of a model's newest checkpoint, from its manifest."""
    by_step: dict[int, str] = {}
    for path in data_dir.glob("**/checkpoints/[0-9]*/manifest.json"):
        manifest = json.loads(path.read_text())
        if manifest["model"] == model:
            by_step[manifest["step"]] = manifest["files"]["model.safetensors"]["sha256"]
    return by_step[max(by_step)] if by_step else None


async def _serve(stage: Stage) -> None:
    """Let users be answered, and report how that went."""
    await asyncio.to_thread(stage.promote)
    sessions = await stage.answer([Ask(f"user {number}", f"When is meeting {number}?") for number in range(_USERS)])
    await asyncio.to_thread(stage.report, {one.id: float(one.tokens[-1] % 2) for one in sessions})


def measure(learning: Learning, kills: int) -> dict[str, Json]:
    """Return the figures."""
    with serving(learning.data_dir, free_port(), {"DATABASE_URL": learning.database_url, **_SETTINGS}) as it:
        asyncio.run(_serve(Stage(it.client, "", learning.database_url)))
    began = time.monotonic()
    expected, accounts = learning.learned("calm", 0), list[Json]()
    seconds = time.monotonic() - began
    print(f"undisturbed: {expected['weights']}, {seconds:.0f} s", flush=True)
    while learning.kills < kills:
        accounts.append(learning.learned(f"killed-{len(accounts)}", kills))
        print(f"{learning.kills} kills, {len(accounts)} runs: {accounts[-1]['weights']}", flush=True)
    others = [other for other in accounts if other != expected]
    return {
        "kills": learning.kills,
        "runs_under_kills": len(accounts),
        "others": len(others),
        "undisturbed_s": round(seconds, 1),
        "hits": dict(learning.hits),
        "expected": expected,
        "first_other": others[:1],
    }


def main() -> None:
    """Print the figures; fail if a kill changed anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=16, help="of each run")
    parser.add_argument("--seconds-between", type=float, default=3.0, help="at most, from progress to the next kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    machine, chance = processes.machine(), random.Random(options.seed)
    with workplace() as directory, database(directory / "postgres") as url:
        learning = Learning(directory / "service", url, options.iterations, chance, options.seconds_between)
        figures = measure(learning, options.kills)
    judge({"machine": machine, **figures}, {"others": 0})


if __name__ == "__main__":
    main()
