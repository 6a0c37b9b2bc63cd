"""Measure how much of a run's wall time is spent outside sampling, training and tools.

    python -m benchmarks.service.iteration_overhead [--iterations 6]

After a short warm-up run, drives a run in a real service and compares its wall time in the database with the busy
seconds of the engine's compute thread (its counters in `GET /health`). The rest is overhead: HTTP, JSON, judging,
database, webhooks. The share is an upper bound, because tool time that does not overlap with the sampling of other
conversations is not deducted. The next iteration's rollouts can start while an iteration is being saved, so rollouts
and the time between iterations are one figure. What examining the iterations for diagnoses takes is read from the
service's log; most of it is the probe, which asks the engine for a few tokens.
"""

import argparse
import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks import processes
from benchmarks.durability.harness import Watched, serving
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port

GOAL = 0.02
EXAMINING_GOAL = 0.01
_WARM_UP = {"iterations": 1, "groups_per_iteration": 2, "evaluation": {"scenarios": 2, "test_scenarios": 2}}


def busy_seconds(data_dir: Path) -> dict[str, float]:
    """Return the busy seconds of the engine's compute thread so far."""
    port = json.loads((data_dir / "engine" / "ready.json").read_text())["port"]
    seconds: dict[str, float] = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).json()["busy_seconds"]
    return seconds


def measure(data_dir: Path, iterations: int, seed: int) -> dict[str, Any]:
    """Return figures of one run's wall time and the engine's busy time."""
    request = {"environment": {"name": "email_search"}, "iterations": iterations, "seed": seed}
    with serving(data_dir, free_port(), timeout_s=120) as it:
        completed(it.client, {**request, **_WARM_UP})
        before = busy_seconds(data_dir)
        run = completed(it.client, request)
        after = busy_seconds(data_dir)
        rows = list(it.client.iterations(run["run_id"]))
    examining_s = examined_seconds(data_dir / "service.log", run["run_id"])
    sampling, training = (after[name] - before[name] for name in ("sampling", "training"))
    wall_s = (datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["started_at"])).total_seconds()
    train_s = sum(row["timing"]["train_s"] for row in rows)
    judge_s = sum(row["timing"]["judge_s"] for row in rows)
    return {
        "iterations": iterations,
        "wall_s": round(wall_s, 2),
        "sampling_s": round(sampling, 2),
        "training_s": round(training, 2),
        "outside_s": round(wall_s - sampling - training, 2),
        "outside_share": round((wall_s - sampling - training) / wall_s, 4),
        "outside_parts_s": {
            "rollouts_and_between_iterations": round(wall_s - train_s - judge_s - sampling, 2),
            "judging": round(judge_s, 2),
            "train_requests": round(train_s - training, 2),
        },
        "goal": GOAL,
        "examining_s": round(examining_s, 3),
        "examining_share": round(examining_s / wall_s, 4),
        "examining_goal": EXAMINING_GOAL,
    }


def examined_seconds(service_log: Path, run_id: str) -> float:
    """Return the seconds that the service spent examining the iterations of a run."""
    lines = [json.loads(line) for line in service_log.read_text().splitlines() if '"iteration examined"' in line]
    return sum(float(line["seconds"]) for line in lines if line["run_id"] == run_id)


def completed(service: Service, request: dict[str, Any]) -> Any:
    """Start a run and return it once completed. Raises AssertionError if it ends otherwise."""
    return Watched(service, f"/runs/{service.start_run(request)['run_id']}").completed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        result = measure(Path(directory), options.iterations, options.seed) | {"machine": machine}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
