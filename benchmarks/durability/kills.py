"""Kill the service with SIGKILL again and again during one real run.

    python -m benchmarks.durability.kills --kills 100

The same run, once undisturbed and once while the service and its engine are killed at random moments (Postgres keeps
running), must end with the same weights, verdict, diagnoses and events. Each kill comes a random time
(`--seconds-between`) after progress was seen. Prints the hashes, the number of finished rollouts that were repeated
(must be 0), how often each phase was hit, the cost of the journal, and a timeline of the restarts in seconds from the
start of the process, read from the service's log. Restarts into training are reported separately because they sample
their first token only afterwards. With `--max-completion-tokens 12` the run has something to diagnose.
"""

import argparse
import json
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks import processes
from benchmarks.durability.harness import Work, database, judge, killed, undisturbed, weights, workplace
from benchmarks.durability.restarts import Restarts, journal_percent, spread
from learnloop_service.app.cli.client import Service
from learnloop_service.environment.json_type import Json

RUN: Json = {
    "model": {"project": "bench", "name": "killed"},
    "groups_per_iteration": 4,
    "rollouts_per_group": 4,
    "evaluation": {"every": 4, "scenarios": 8, "test_scenarios": 8, "samples": 1},
}
_OF_CLAIMS = ("run.created", "run.started", "run.released")
"""Events that a kill adds, or that come before the run's first claim."""


@dataclass
class Run(Work):
    """A run, and what is known of it at the kills. `url` is that of its database, `log` its service's log."""

    request: Json
    url: str = ""
    log: Path = Path()
    hits: Counter[str] = field(default_factory=Counter)
    ahead: int = 0
    finished: set[str] = field(default_factory=set)
    moved_s: list[float] = field(default_factory=list)
    last: Json = None

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.log)

    def start(self, service: Service) -> str:
        return f"/runs/{service.start_run(self.request)['run_id']}"

    def moved(self, document: Json) -> bool:
        return document["progress"]["done"] is not None and where(document) != self.last

    def was_killed(self, document: Json) -> None:
        self.last = where(document)
        self.finished |= kept_rollouts(self.url)
        self.ahead += begun_iterations(self.url) > 1
        self.hits[str(document["progress"]["phase"])] += 1

    def account(self, service: Service, document: Json, data_dir: Path) -> Json:
        """Return the weights, and what the run says of itself, without times and ids: equal runs have others."""
        events = [[logged["type"], logged["iteration"]] for logged in service.events(document["run_id"])]
        named = ("cause", "state", "first_iteration", "named_at_iteration", "summary")
        diagnoses = service.diagnosis(document["run_id"])["diagnoses"]
        return {
            "weights": weights(data_dir),
            "verdict": document["verdict"],
            "diagnoses": [[diagnosis[name] for name in named] for diagnosis in diagnoses],
            "events": [event for event in events if event[0] not in _OF_CLAIMS],
        }

    def lived(self, started: float, moved_s: float, again: bool) -> None:
        """Note the times of a start."""
        self.restarts.read(started, count=again)
        if again:
            self.moved_s.append(moved_s)

    def figures(self, document: Json) -> Json:
        """Return what was seen at the kills and of the restarts."""
        return {
            "hits": dict(self.hits),
            "kills_with_rollouts_ahead": self.ahead,
            "rollouts": document["rollouts"],
            "finished_rollouts_seen_at_kills": len(self.finished),
            "made_again": len(self.finished - saved_rollouts(self.url)),
            "restart_s": self.restarts.figures() | {"seen to move on": spread(self.moved_s)} if self.moved_s else {},
            "cost": document["cost"],
        }


def where(run: Json) -> Json:
    progress = run["progress"]
    return progress["iteration"], progress["phase"], progress["done"]


def kept_rollouts(url: str) -> set[str]:
    """Return the ids of the finished rollouts in the journal."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT value FROM journal WHERE name LIKE 'rollout/%'").fetchall()
    return {json.loads(zlib.decompress(value))["id"] for (value,) in rows}


def begun_iterations(url: str) -> int:
    """Count the iterations that have finished rollouts in the journal."""
    query = "SELECT count(DISTINCT iteration) FROM journal WHERE name LIKE 'rollout/%'"
    with psycopg.connect(url) as connection:
        [(count,)] = connection.execute(query).fetchall()
    return int(count)


def saved_rollouts(url: str) -> set[str]:
    """Return the ids of the saved trajectories."""
    with psycopg.connect(url) as connection:
        return {id for (id,) in connection.execute("SELECT id FROM trajectory").fetchall()}


def main() -> None:
    """Print the figures; fail if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--environment", default="email_search")
    parser.add_argument("--max-staleness", type=int, default=0, help="iterations that rollouts run ahead")
    parser.add_argument(
        "--seconds-between",
        type=float,
        nargs=2,
        default=(0.0, 6.0),
        metavar=("LEAST", "MOST"),
        help="from new progress to the next kill",
    )
    parser.add_argument("--max-completion-tokens", type=int, default=256, help="of a turn; few of them cut replies off")
    parser.add_argument(
        "--scenario-sampling",
        choices=("passes", "difficulty"),
        default="passes",
        help="`difficulty` also replaces groups that teach nothing",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    request = {
        **RUN,
        "iterations": options.iterations,
        "environment": {"name": options.environment},
        "pipeline": {"max_staleness": options.max_staleness},
        "max_completion_tokens": options.max_completion_tokens,
        "scenario_sampling": options.scenario_sampling,
        "replace_groups": options.scenario_sampling == "difficulty",
    }
    rng, between_s = random.Random(options.seed), tuple(options.seconds_between)
    with workplace() as directory:
        machine = processes.machine()
        calm, data_dir = directory / "undisturbed", directory / "killed"
        expected, seconds = undisturbed(Run(request), calm)
        figures = {"undisturbed_s": round(seconds, 1), "journal_percent": journal_percent(calm / "service.log")}
        with database(directory / "postgres") as url:
            run = Run(request, url, data_dir / "service.log")
            document, account, kills = killed(
                run, data_dir, options.kills, between_s, rng, {"DATABASE_URL": url}, run.lived
            )
            figures |= {"kills": kills, **run.figures(document)}
    figures = {"machine": machine, "seed": options.seed, "expected": expected, "account": account, **figures}
    judge(figures, {"account": expected, "made_again": 0})
    if kills < options.kills:
        raise SystemExit(f"the run ended after {kills} of {options.kills} kills: give it more --iterations")


if __name__ == "__main__":
    main()
