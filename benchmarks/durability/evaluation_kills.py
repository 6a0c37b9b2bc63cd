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
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import psycopg

from app.cli.client import Service, ServiceRefused, ServiceUnreachable
from benchmarks import processes
from benchmarks.durability import kills
from benchmarks.durability.kills import Watched, database, free_port
from benchmarks.frozen_code import freeze
from benchmarks.plugin_judges import judges_installed
from environment.json_type import Json

_MODELS = [{"model": "learnloop/tiny", "label": "base"}, {"model": "learnloop/tiny", "label": "again"}]
_FIGURES = ("success", "reward", "sources", "turns", "errors", "prompt_tokens", "completion_tokens")
_REJUDGE = {"judge": {"name": "slow", "config": {"most_s": 18}}, "repeats": 3}
"""With 16 groups at a time it saves about two verdicts between two kills."""


def started(service: Service, scenarios: int, what_if: bool) -> str:
    """Start an evaluation or a what-if, and return its id."""
    sampled = {"temperature": 1.0, "seed": 3}
    request = {"models": _MODELS, "scenarios": scenarios, "samples": 2} | sampled
    if not what_if:
        return _posted(service, "/evaluations", request)
    recorded = _posted(service, "/evaluations", {"models": _MODELS[:1], "scenarios": 32} | sampled)
    ended(service, recorded, 1800)
    rollouts = service.call("GET", f"/evaluations/{recorded}/trajectories", params={"limit": 200})["items"]
    longest = max(rollouts, key=lambda each: (each["turns"], each["scenario_id"]))
    return _posted(service, f"/trajectories/{longest['id']}/what-if", {"search": "all", "samples": 64})


def _posted(service: Service, path: str, request: Json) -> str:
    id: str = service.call("POST", path, json=request)["evaluation_id"]
    return id


def ended(service: Service, id: str, most_s: float) -> Json:
    """Wait for the evaluation to end, even while the service is down. Returns None when time is up."""
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        try:
            found = service.call("GET", f"/evaluations/{id}")
        except (ServiceUnreachable, ServiceRefused):
            found = {"status": "unknown"}
        if found["status"] in ("completed", "failed", "cancelled"):
            return found
        time.sleep(0.1)
    return None


def figures(evaluation: Json) -> list[dict[str, Json]]:
    """Return the figures that must not depend on kills."""
    return [{name: model[name] for name in _FIGURES} for model in evaluation["report"]["models"]]


def rejudging(service: Service, groups: int, before: dict[str, Json]) -> str:
    """Train a run, judge it again undisturbed, start the same rejudging once more and return its id.

    `before` gets the first one's report and the hash of the run's rows.
    """
    request = {"iterations": 1, "groups_per_iteration": groups, "rollouts_per_group": 2}
    run_id = service.start_run(request | {"evaluation": {"scenarios": 0, "test_scenarios": 0}})["run_id"]
    run = Watched(service, run_id).wait_until(kills.ended, 1800)
    assert run is not None
    assert run["status"] == "completed", run["error"]
    path, began = f"/runs/{run_id}/rejudge", time.monotonic()
    found = ended(service, _posted(service, path, _REJUDGE), 1800)
    assert found is not None
    assert found["status"] == "completed", found["error"]
    before |= {"report": found["report"], "seconds": time.monotonic() - began}
    return _posted(service, path, _REJUDGE)


_ROLLOUTS = "SELECT slot, id FROM trajectory WHERE evaluation_id = %s"
_VERDICTS = """SELECT trajectory_id || '/' || repeat, xmin || md5(rejudged_rollout::text)
    FROM rejudged_rollout WHERE evaluation_id = %s"""
"""A row that is written again gets another `xmin`, even if it is the same."""


def saved(url: str, query: str, id: str) -> dict[str, str]:
    """Return what the evaluation has finished, and what tells it from another attempt, by its place."""
    with psycopg.connect(url) as connection:
        return dict(connection.execute(query.encode(), (id,)).fetchall())


def rows_hash(url: str) -> str:
    """Return a hash of all that is stored of the run's rollouts."""
    query = "SELECT md5(string_agg(trajectory::text, '' ORDER BY seq)) FROM trajectory WHERE run_id IS NOT NULL"
    with psycopg.connect(url) as connection:
        [(found,)] = connection.execute(query).fetchall()
    return str(found)


def undisturbed(directory: Path, scenarios: int, what_if: bool) -> tuple[Json, float]:
    """Return the figures and the seconds that the evaluation took."""
    data_dir, port = directory / "undisturbed", free_port()
    data_dir.mkdir()
    with processes.service(data_dir, port) as child:
        service = Service(f"http://127.0.0.1:{port}")
        processes.wait_for(child, processes.answers(service))
        id, began = started(service, scenarios, what_if), time.monotonic()
        found = ended(service, id, 1800)
        assert found is not None
        assert found["status"] == "completed", found["error"]
        return figures(found), time.monotonic() - began


def killed(
    directory: Path,
    start: Callable[[Service], str],
    query: str,
    most_kills: int,
    rng: random.Random,
    variables: Mapping[str, str],
) -> tuple[Json, dict[str, Json]]:
    """Start the evaluation and kill its service up to `most_kills` times; return how it ended, and the figures.

    `query` selects what it has saved, and `variables` are added to the service's environment.
    """
    data_dir, port, id, done = directory / "killed", free_port(), "", 0
    data_dir.mkdir()
    seen: dict[str, str] = {}
    rows = ""
    with database(directory / "postgres") as url:
        os.environ["DATABASE_URL"] = url
        service = Service(f"http://127.0.0.1:{port}", timeout_s=5)
        while True:
            with processes.service(data_dir, port, **variables) as child:
                processes.wait_for(child, processes.answers(service))
                id = id or start(service)
                rows = rows or rows_hash(url)
                before, until = len(seen), time.monotonic() + 300
                while len(saved(url, query, id)) <= before and time.monotonic() < until and not ended(service, id, 0.1):
                    time.sleep(0.05)
                found = ended(service, id, rng.uniform(0.0, 1.0) if done < most_kills else 1800)
                if found is not None:
                    break
                child.send_signal(signal.SIGKILL)
                child.wait()
            seen |= saved(url, query, id)
            done += 1
        last, rows_at_end = saved(url, query, id), rows_hash(url)
        with psycopg.connect(url) as connection:
            of_events = "SELECT seq, type, data FROM evaluation_event WHERE evaluation_id = %s ORDER BY seq"
            events = connection.execute(of_events, (id,)).fetchall()
    assert found["status"] == "completed", found["error"]
    epochs = [data["epoch"] for _, type, data in events if type == "evaluation.started"]
    return found, {
        "kills": done,
        "saved": len(last),
        "made_again": sum(last.get(place) != made for place, made in seen.items()),
        "lost": found["total"] - len(last),
        "counted_twice": found["done"] - len(last),
        "rows_of_runs_changed": rows != rows_at_end,
        "gaps_in_events": [seq for seq, *_ in events] != list(range(1, len(events) + 1)),
        "epochs_rise_by_one": epochs == list(range(1, len(epochs) + 1)),
        "claims": len(epochs),
    }


_MUST_BE = {
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
    os.environ.pop("DATABASE_URL", None)
    rng, before = random.Random(options.seed), dict[str, Json]()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        os.chdir(freeze(directory))  # every start must run the same code
        if options.rejudge:
            start = partial(rejudging, groups=options.scenarios, before=before)
            with judges_installed(directory / "judges") as variables:
                found, counts = killed(directory, start, _VERDICTS, options.kills, rng, variables)
            is_same = found["report"] == before["report"]
        else:
            expected, before["seconds"] = undisturbed(directory, options.scenarios, options.what_if)
            start = partial(started, scenarios=options.scenarios, what_if=options.what_if)
            found, counts = killed(directory, start, _ROLLOUTS, options.kills, rng, {})
            is_same = figures(found) == expected
    counts |= {"undisturbed_s": round(before["seconds"], 1), "same": is_same}
    print(json.dumps(counts, indent=2))
    if any(counts[name] != value for name, value in _MUST_BE.items()):
        raise SystemExit("the killed evaluation is not what the undisturbed one was")


if __name__ == "__main__":
    main()
