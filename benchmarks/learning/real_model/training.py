"""Trains an arm, and returns the run's figures."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from statistics import fmean

from benchmarks.learning.real_model.machine import gpu_memory_gb
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.run_report import run_seconds
from learnloop_service.app.cli.watching import follow
from learnloop_service.environment.json_type import Json

_MEMORY_EVERY_S = 2.0
_LAST = 5
"""Number of iterations at the end over which the k3 estimate is averaged."""


def train(service: Service, request: Mapping[str, Json], say: Callable[[str], None]) -> Json:
    """Return a run's figures. Raises RuntimeError unless it completes."""
    run_id = service.start_run(dict(request))["run_id"]
    watch = _Watch(say)
    run = follow(service, run_id, watch.look)
    if run["status"] != "completed":
        raise RuntimeError(f"the run is {run['status']}: {run['error']}")
    rows = iterations(service, run)
    rollout_s = sum(row["rollout_s"] for row in rows)
    tokens = run["tokens"]["completion"]
    return {
        "run_id": run_id,
        "model": f"{run['model']['project']}/{run['model']['name']}",
        "step": rows[-1]["step"],
        "best_step": run["best_checkpoint"] and run["best_checkpoint"]["step"],
        "verdict": run["verdict"]["text"],
        "warnings": run["warnings"],
        "request": run["request"],
        "seconds": round(run_seconds(run) or 0.0, 1),
        "rollouts": run["rollouts"],
        "sampled_tokens": tokens,
        "tokens_per_s": round(tokens / rollout_s, 1) if rollout_s else None,
        "peak_memory_gb": watch.peak_memory_gb,
        "k3": k3(rows),
        "iterations": rows,
    }


def iterations(service: Service, run: Json) -> list[dict[str, Json]]:
    """Return each iteration's figures, and when it was saved in seconds since the run began."""
    began = datetime.fromisoformat(run["started_at"])
    rows = []
    for row in service.iterations(run["run_id"]):
        saved_s = (datetime.fromisoformat(row["finished_at"]) - began).total_seconds()
        timing = {name: round(row["timing"].get(name, 0.0), 1) for name in ("rollout_s", "train_s", "total_s")}
        figures = {name: row[name] for name in ("iteration", "step", "success", "malformed", "no_signal", "staleness")}
        k3_of_row = row["train_metrics"].get("kl_div")
        rows.append(
            {**figures, "reward": row["rewards"]["mean"], "k3": k3_of_row, **timing, "saved_s": round(saved_s, 1)}
        )
    return rows


def k3(rows: list[dict[str, Json]]) -> Json:
    """Return Schulman's k3 estimate, in nats a token, of KL(sampler || trainer): over the last iterations and the
    highest. None if nothing was trained on rollouts."""
    estimates = [row["k3"] for row in rows if row["k3"] is not None]
    return (
        {"last": fmean(estimates[-_LAST:]), "highest": max(estimates), "iterations": len(estimates)}
        if estimates
        else None
    )


class _Watch:
    """Reports a run's iterations as they end, and keeps the highest memory seen on a GPU."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.peak_memory_gb: float | None = None
        self._say = say
        self._seen = 0
        self._asked_at = float("-inf")

    def look(self, run: Json) -> None:
        """Report new iterations of the run."""
        if time.monotonic() - self._asked_at >= _MEMORY_EVERY_S:
            self._asked_at = time.monotonic()
            used = gpu_memory_gb()
            if used is not None:
                self.peak_memory_gb = round(max(used, self.peak_memory_gb or 0.0), 1)
        for row in run["iterations"]:
            if row["iteration"] > self._seen and row["success"] is not None:
                self._seen = row["iteration"]
                self._say(
                    f"iteration {row['iteration']}: reward {row['rewards']['mean']:.2f}, success {row['success']:.0%}, "
                    f"malformed {row['malformed']:.0%}"
                )
