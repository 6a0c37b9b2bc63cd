"""Measure the seconds until a real model answers enough held-out questions, on one GPU and on two.

    python -m benchmarks.learning.real_model --base-model DIRECTORY --prepared DATA --workers 1 1+1 1+1:1

Each run has its own service: a warm start on conversations of the environment's oracle, then GRPO with 16 groups of 8
rollouts. `--workers 2` samples and trains in two processes, `1+1` samples in one and trains in another, and `1+1:1`
does so with rollouts that are one step old. `DATA` is the data directory of `learnloop data prepare mail`
(docs/data.md), and `DIRECTORY` holds the base model in Hugging Face layout.

The run itself evaluates nothing; its figures are printed when it ends. Then its checkpoints answer all held-out
questions greedily, one checkpoint after another until one answers enough. The result is when that one was saved.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile
from pathlib import Path

from app.cli.client import Service
from app.cli.service_process import own_service
from app.cli.watching import follow
from benchmarks.learning.smollm2 import evaluate
from environment.json_type import Json

BASE = "real"
PROMISING = 0.6
"""Success in training from which checkpoints are evaluated."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The engine's processes, and how many steps old rollouts can be."""

    samplers: int
    trainers: int
    """Number of trainer processes; with 0 the samplers also train."""
    staleness: int

    @classmethod
    def named(cls, text: str) -> "Workers":
        """Parse `1`, `2`, `1+1` or `1+1:1`."""
        processes, _, staleness = text.partition(":")
        samplers, _, trainers = processes.partition("+")
        return cls(int(samplers), int(trainers or 0), int(staleness or 0))

    @property
    def flags(self) -> str:
        """The engine's flags for these workers."""
        if self.trainers:
            return f"--samplers {self.samplers} --trainers {self.trainers}"
        return f"--workers {self.samplers}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work of a run."""

    demonstrations: int
    iterations: int
    groups: int
    rollouts: int
    questions: int
    """Number of held-out questions for each checkpoint."""


PLANS: Mapping[str, Plan] = {
    "whole": Plan(480, iterations=14, groups=16, rollouts=8, questions=152),
    "check": Plan(8, iterations=2, groups=2, rollouts=4, questions=4),
}
"""Plans by name; `check` only shows on a CPU that everything works, it is too small to learn from."""


def request(plan: Plan, seed: int, staleness: int) -> dict[str, Json]:
    """Build the learn-loop request."""
    return {
        "environment": {"name": "email_search", "config": {"inbox": "mail"}},
        "model": {"name": "real", "base_model": BASE},
        "seed": seed,
        "warm_start": {
            "demonstrations": {"oracle": plan.demonstrations},
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 1e-4,
        },
        "iterations": plan.iterations,
        "groups_per_iteration": plan.groups,
        "rollouts_per_group": plan.rollouts,
        "concurrency": plan.groups * plan.rollouts,
        "learning_rate": 2e-4,
        "max_completion_tokens": 128,
        "evaluation": {"every": 1_000, "scenarios": 0, "test_scenarios": 0},
        "checkpoints": {"keep_last": 100},
        "pipeline": {"max_staleness": staleness},
    }


def measure(
    base: Path, prepared: Path, plan: Plan, workers: Workers, seed: int, share: float, device: str
) -> Iterator[Json]:
    """Yield the run's figures, then those of each evaluated checkpoint. Raises RuntimeError if the run failed."""
    os.environ["LEARNLOOP_ENGINE_ARGS"] = f"--device {device} --slots {plan.groups * plan.rollouts} {workers.flags}"
    os.environ["LEARNLOOP_ENGINE_BASE_MODELS"] = f"{BASE}={base}"
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        data_dir = Path(directory) / "data"
        shutil.copytree(prepared, data_dir)
        with own_service(data_dir, waiting=lambda _: None) as service:
            run_id = service.start_run(request(plan, seed, workers.staleness))["run_id"]
            run = follow(service, run_id, lambda _: None)
            if run["status"] != "completed":
                raise RuntimeError(f"the run is {run['status']}: {run['error']}")
            rows = _iterations(service, run)
            yield {"rollouts": run["rollouts"], "iterations": rows}
            yield from _held_out(service, run, rows, plan.questions, share)


def _iterations(service: Service, run: Json) -> list[dict[str, Json]]:
    """Return each iteration's figures, and when it was saved in seconds since the run began."""
    began = datetime.fromisoformat(run["started_at"])
    rows = []
    for row in service.iterations(run["run_id"]):
        saved_s = (datetime.fromisoformat(row["finished_at"]) - began).total_seconds()
        timing = {name: round(row["timing"][name], 1) for name in ("rollout_s", "train_s", "total_s")}
        figures = {name: row[name] for name in ("iteration", "step", "success", "staleness")}
        rows.append({**figures, "kl_div": row["train_metrics"].get("kl_div"), **timing, "saved_s": round(saved_s, 1)})
    return rows


def _held_out(
    service: Service, run: Json, rows: Sequence[Mapping[str, Json]], questions: int, share: float
) -> Iterator[dict[str, Json]]:
    """Evaluate checkpoints from the first promising one to the first that answers enough."""
    model = f"{run['model']['project']}/{run['model']['name']}"
    trained = (row for row in rows if row["success"] is not None)
    for row in dropwhile(lambda each: each["success"] < PROMISING, trained):
        asked = {"run_id": run["run_id"], "models": [{"model": f"{model}@{row['step']}"}], "scenarios": questions}
        report, _ = evaluate(service, asked)
        held_out = report["models"][0]["success"]
        yield {"step": row["step"], "saved_s": row["saved_s"], "held_out": held_out}
        if held_out["mean"] >= share:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.real_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-model", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--prepared", type=Path, required=True, metavar="DATA")
    parser.add_argument("--workers", nargs="+", default=["1"], metavar="WORKERS[:STALENESS]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--share", type=float, default=0.8, help="of the held-out questions, to be answered")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan", choices=PLANS, default="whole", help="how much is done")
    options = parser.parse_args()
    plan = PLANS[options.plan]
    for text in options.workers:
        workers = Workers.named(text)
        what = options.base_model, options.prepared, plan, workers
        for figures in measure(*what, seed=options.seed, share=options.share, device=options.device):
            print(text, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
