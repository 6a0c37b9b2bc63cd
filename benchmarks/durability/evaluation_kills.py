"""Kill the service with SIGKILL again and again during one real evaluation.

    python -m benchmarks.durability.evaluation_kills [--what-if]

An evaluation of the base model under two labels runs once undisturbed, and once while the service and its engine are
killed at random moments (Postgres keeps running). With --what-if it is the search for the decisive turn of a recorded
rollout. Both must end with the same figures. No finished rollout may be repeated, each has its own slot, the event log
has no gap, and every claim raises the epoch by one.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import psycopg

from app.cli.client import Service, ServiceRefused, ServiceUnreachable
from benchmarks import processes
from benchmarks.durability.kills import database, free_port
from benchmarks.frozen_code import freeze
from environment.json_type import Json

_MODELS = [{"model": "learnloop/tiny", "label": "base"}, {"model": "learnloop/tiny", "label": "again"}]
_FIGURES = ("success", "reward", "sources", "turns", "errors", "prompt_tokens", "completion_tokens")


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


def saved(url: str, id: str) -> dict[str, str]:
    """Return the ids of the evaluation's finished rollouts by slot."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT slot, id FROM trajectory WHERE evaluation_id = %s", (id,)).fetchall()
    return dict(rows)


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


def killed(directory: Path, scenarios: int, kills: int, rng: random.Random, what_if: bool) -> dict[str, Json]:
    """Run the evaluation again and kill its service up to `kills` times."""
    data_dir, port, id, done = directory / "killed", free_port(), "", 0
    data_dir.mkdir()
    seen: dict[str, str] = {}
    with database(directory / "postgres") as url:
        os.environ["DATABASE_URL"] = url
        service = Service(f"http://127.0.0.1:{port}", timeout_s=5)
        while True:
            with processes.service(data_dir, port) as child:
                processes.wait_for(child, processes.answers(service))
                id = id or started(service, scenarios, what_if)
                before, until = len(seen), time.monotonic() + 300
                while len(saved(url, id)) <= before and time.monotonic() < until and not ended(service, id, 0.1):
                    time.sleep(0.05)
                found = ended(service, id, rng.uniform(0.0, 1.0) if done < kills else 1800)
                if found is not None:
                    break
                child.send_signal(signal.SIGKILL)
                child.wait()
            seen |= saved(url, id)
            done += 1
        slots = saved(url, id)
        with psycopg.connect(url) as connection:
            query = "SELECT seq, type, data FROM evaluation_event WHERE evaluation_id = %s ORDER BY seq"
            events = connection.execute(query, (id,)).fetchall()
    assert found["status"] == "completed", found["error"]
    epochs = [data["epoch"] for _, type, data in events if type == "evaluation.started"]
    return {
        "kills": done,
        "figures": figures(found),
        "rollouts": len(slots),
        "made_again": sum(slots[slot] != trajectory for slot, trajectory in seen.items()),
        "gaps_in_events": [seq for seq, *_ in events] != list(range(1, len(events) + 1)),
        "epochs_rise_by_one": epochs == list(range(1, len(epochs) + 1)),
        "claims": len(epochs),
    }


def main() -> None:
    """Print the figures; fail if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--scenarios", type=int, default=64)
    parser.add_argument("--what-if", action="store_true", help="kill a search for the decisive turn of a rollout")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    os.environ.pop("DATABASE_URL", None)
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        os.chdir(freeze(directory))  # every start must run the same code
        expected, seconds = undisturbed(directory, options.scenarios, options.what_if)
        rng = random.Random(options.seed)
        found = killed(directory, options.scenarios, options.kills, rng, options.what_if)
    is_same = found.pop("figures") == expected
    print(json.dumps({"undisturbed_s": round(seconds, 1), "same": is_same, **found}, indent=2))
    if not is_same or found["made_again"] or found["gaps_in_events"] or not found["epochs_rise_by_one"]:
        raise SystemExit("the killed evaluation is not what the undisturbed one was")


if __name__ == "__main__":
    main()
