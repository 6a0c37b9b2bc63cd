"""Kill the service with SIGKILL again and again during one real evaluation.

    python -m benchmarks.durability.evaluation_kills [--what-if | --rejudge]

An evaluation of the base model under two labels runs once undisturbed, and once while the service and its engine are
killed at random moments (Postgres keeps running). With --what-if it is the search for the decisive turn of a recorded
rollout. Both must end with the same figures. No finished rollout may be repeated, each has its own slot, the event log
has no gap, and every claim raises the epoch by one.

With --rejudge the rollouts of a run are judged again, three times each, by a judge that takes seconds. Its report must
be that of a rejudging of the same run that nothing disturbs. No verdict may be given twice or be lost, and the rows of
the run's rollouts must stay as they are.
"""

import argparse
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.durability.harness import Watched, Work, database, judge, killed, undisturbed, workplace
from benchmarks.plugin_judges import judges_installed
from learnloop_service.app.cli.client import Service
from learnloop_service.environment.json_type import Json

_MODELS = [{"model": "learnloop/tiny", "label": "base"}, {"model": "learnloop/tiny", "label": "again"}]
_FIGURES = ("success", "reward", "sources", "turns", "errors", "prompt_tokens", "completion_tokens")
_REJUDGE = {"judge": {"name": "slow", "config": {"most_s": 18}}, "repeats": 3}
"""With 16 groups at a time it saves about two verdicts between two kills."""
_BETWEEN_S = (0.0, 1.0)
_EVENTS = "SELECT seq, type, data FROM evaluation_event WHERE evaluation_id = %s ORDER BY seq"


@dataclass
class Evaluation(Work):
    """An evaluation, or a what-if, and what it has saved by the kills."""

    scenarios: int
    what_if: bool
    url: str = ""
    id: str = ""
    rows: str = ""
    finished: dict[str, str] = field(default_factory=dict)
    """Slots that were finished at the kills, each with its row's id."""
    saved_rows = "SELECT slot, id FROM trajectory WHERE evaluation_id = %s"
    """Selects what the evaluation has finished, and what tells it from another attempt."""

    def start(self, service: Service) -> str:
        path = self.started(service)
        self.id = path.rpartition("/")[2]
        if self.url:
            self.rows = rows_hash(self.url)
        return path

    def started(self, service: Service) -> str:
        sampled = {"temperature": 1.0, "seed": 3}
        request = {"models": _MODELS, "scenarios": self.scenarios, "samples": 2} | sampled
        if not self.what_if:
            return _posted(service, "/evaluations", request)
        recorded = _posted(service, "/evaluations", {"models": _MODELS[:1], "scenarios": 32} | sampled)
        Watched(service, recorded).completed()
        rollouts = service.call("GET", f"{recorded}/trajectories", params={"limit": 200})["items"]
        longest = max(rollouts, key=lambda rollout: (rollout["turns"], rollout["scenario_id"]))
        return _posted(service, f"/trajectories/{longest['id']}/what-if", {"search": "all", "samples": 64})

    def moved(self, document: Json) -> bool:
        return len(self.saved()) > len(self.finished)

    def was_killed(self, document: Json) -> None:
        self.finished |= self.saved()

    def account(self, service: Service, document: Json, data_dir: Path) -> Json:
        return [{name: model[name] for name in _FIGURES} for model in document["report"]["models"]]

    def saved(self) -> dict[str, str]:
        with psycopg.connect(self.url) as connection:
            return dict(connection.execute(self.saved_rows.encode(), (self.id,)).fetchall())

    def figures(self, document: Json) -> dict[str, Json]:
        """Compare what is saved at the end with what was seen at the kills."""
        last = self.saved()
        with psycopg.connect(self.url) as connection:
            events = connection.execute(_EVENTS, (self.id,)).fetchall()
        epochs = [data["epoch"] for _, type, data in events if type == "evaluation.started"]
        return {
            "saved": len(last),
            "made_again": sum(last.get(slot) != id for slot, id in self.finished.items()),
            "lost": document["total"] - len(last),
            "counted_twice": document["done"] - len(last),
            "rows_of_runs_changed": self.rows != rows_hash(self.url),
            "gaps_in_events": [seq for seq, *_ in events] != list(range(1, len(events) + 1)),
            "epochs_rise_by_one": epochs == list(range(1, len(epochs) + 1)),
            "claims": len(epochs),
        }


@dataclass
class Rejudging(Evaluation):
    """A rejudging of a run. The same one is done before, undisturbed."""

    expected: Json = None
    seconds: float = 0.0
    saved_rows = """SELECT trajectory_id || '/' || repeat, xmin || md5(rejudged_rollout::text)
    FROM rejudged_rollout WHERE evaluation_id = %s"""
    """A row that is written again gets another `xmin`, even if it is the same."""

    def started(self, service: Service) -> str:
        request = {"iterations": 1, "groups_per_iteration": self.scenarios, "rollouts_per_group": 2}
        run = service.start_run(request | {"evaluation": {"scenarios": 0, "test_scenarios": 0}})
        path = f"/runs/{run['run_id']}"
        Watched(service, path).completed()
        began = time.monotonic()
        self.expected = Watched(service, _posted(service, f"{path}/rejudge", _REJUDGE)).completed()["report"]
        self.seconds = time.monotonic() - began
        return _posted(service, f"{path}/rejudge", _REJUDGE)

    def account(self, service: Service, document: Json, data_dir: Path) -> Json:
        return document["report"]


def _posted(service: Service, path: str, request: Json) -> str:
    """Start an evaluation; return its path."""
    return f"/evaluations/{service.call('POST', path, json=request)['evaluation_id']}"


def rows_hash(url: str) -> str:
    """Return a hash of all that is stored of the run's rollouts."""
    query = "SELECT md5(string_agg(trajectory::text, '' ORDER BY seq)) FROM trajectory WHERE run_id IS NOT NULL"
    with psycopg.connect(url) as connection:
        [(digest,)] = connection.execute(query).fetchall()
    return str(digest)


def under_kills(
    work: Evaluation, directory: Path, kills: int, rng: random.Random, variables: Mapping[str, str]
) -> tuple[Json, dict[str, Json]]:
    """Return the account of the killed work and its figures. `variables` are added to the service's environment."""
    with database(directory / "postgres") as work.url:
        settings = {"DATABASE_URL": work.url, **variables}
        document, account, kill_count = killed(work, directory / "killed", kills, _BETWEEN_S, rng, settings)
        return account, {"kills": kill_count, **work.figures(document)}


_MUST_BE: dict[str, Json] = {
    "same": True,
    "made_again": 0,
    "lost": 0,
    "counted_twice": 0,
    "rows_of_runs_changed": False,
    "gaps_in_events": False,
    "epochs_rise_by_one": True,
}


def main() -> None:
    """Print the figures; fail if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--scenarios", type=int, default=64, help="with --rejudge: groups of the run")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--what-if", action="store_true", help="kill a search for the decisive turn of a rollout")
    what.add_argument("--rejudge", action="store_true", help="kill a rejudging of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with workplace() as directory:
        if options.rejudge:
            rejudging = Rejudging(options.scenarios, what_if=False)
            with judges_installed(directory / "judges") as variables:
                account, figures = under_kills(rejudging, directory, options.kills, rng, variables)
            expected, seconds = rejudging.expected, rejudging.seconds
        else:
            expected, seconds = undisturbed(Evaluation(options.scenarios, options.what_if), directory / "undisturbed")
            work = Evaluation(options.scenarios, options.what_if)
            account, figures = under_kills(work, directory, options.kills, rng, {})
    judge(figures | {"undisturbed_s": round(seconds, 1), "same": account == expected}, _MUST_BE)
    if figures["kills"] < options.kills:
        raise SystemExit(f"it ended after {figures['kills']} of {options.kills} kills: give it more --scenarios")


if __name__ == "__main__":
    main()
