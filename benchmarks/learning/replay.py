"""Compare ways to go on after a run whose judge had a bug, with a run that was judged right from the start.

    python -m benchmarks.learning.replay [--seeds 0,1,2,3,4] [--parallel 10] [--directory DIR]

From iteration 3 on a planted judge takes any answer that names a date for right. That run (P) is judged again by
`reference`, the right judge. The arms are A: a run with the right judge from the start; B: a fork of the last
checkpoint before the damage that trains on with the right judge; D: a fork of it that first imitates the best rollouts
by the new rewards and then makes 4 iterations; E: D before these, so one that only imitates. Gain is held-out success
over the base's, of 64 greedy and 128 sampled rollouts; tokens are those that an arm sampled for training. The goal is
for D: with 30% of A's tokens 90% of A's greedy gain, mean of the seeds, and at least 75% with each seed.

Each seed has two services, one for A and one for the rest. With --directory a second call continues where the first was
ended, and the figures are in DIR/SEED-right.json and DIR/SEED-wrong.json.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import processes
from benchmarks.plugin_judges import judges_installed
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.json_type import Json

_RIGHT = {"name": "reference"}
_BASE = "learnloop/tiny"
_SPARED = 2
"""Number of iterations, from the first, that the bug spares."""
_AFTER_IMITATION = 4
_BEST = {"name": "rejudged", "min_reward": 1.2, "per_scenario": 2}
"""Which rollouts are imitated, as docs/rejudging.md suggests."""
_MODES = {"greedy": {"temperature": 0.0, "samples": 1}, "sampled": {"temperature": 1.0, "samples": 2}}
_VALIDATED = 24
"""Held-out scenarios that choose the best checkpoint, as by default."""
_NEW_SEED = 1_000
"""Added to the seed of forks: with the parent's they would be given the scenarios of its first iterations again."""
_ENDED = ("completed", "failed", "cancelled", "paused")
_GAIN, _LEAST_GAIN, _TOKENS = 0.9, 0.75, 0.3
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the runs."""

    iterations: int
    groups: int
    rollouts: int
    scenarios: int
    """Held-out ones that the gain is measured on."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with one service, for one seed. All requests have keys, so that they can be sent again."""

    service: Service
    seed: int
    size: Size

    def post(self, key: str, path: str, request: Mapping[str, Json]) -> Json:
        """Send the request, or get the reply to it again."""
        return self.service.call("POST", path, json=request, key=key)

    def ended(self, path: str) -> Json:
        """Wait for the end of a run or evaluation. Raises RuntimeError if it has not completed."""
        while (document := self.service.call("GET", path))["status"] not in _ENDED:
            time.sleep(0.5)
        if document["status"] != "completed":
            raise RuntimeError(f"{path} of seed {self.seed} is {document['status']}: {document['error']}")
        return document

    def run(self, key: str, judge: Json) -> str:
        """Start a run and return its id."""
        request = {
            "environment": {"name": "email_search"},
            "judge": judge,
            "seed": self.seed,
            "iterations": self.size.iterations,
            "groups_per_iteration": self.size.groups,
            "rollouts_per_group": self.size.rollouts,
            "evaluation": {"test_scenarios": 0, "scenarios": min(_VALIDATED, self.size.scenarios)},
        }
        id: str = self.post(key, "/learn-loop", request)["run_id"]
        return id

    def fork(self, key: str, run_id: str, step: int, **request: Json) -> str:
        """Start a fork by the right judge, and return its id."""
        common = {"checkpoint": step, "judge": _RIGHT, "seed": self.seed + _NEW_SEED}
        id: str = self.post(key, f"/runs/{run_id}/fork", common | request)["run_id"]
        return id

    def step_after(self, run_id: str, iteration: int) -> int:
        """Wait until the run has made that iteration, and return the step of its checkpoint."""
        while True:
            run = self.service.run(run_id)
            for row in run["iterations"]:
                if row["iteration"] == iteration:
                    return int(row["step"])
            if run["status"] in _ENDED:
                raise RuntimeError(f"run {run_id} is {run['status']}: {run['error']}")
            time.sleep(0.5)

    def arms(self, runs: Mapping[str, str], *others: str) -> Figures:
        """Wait for the runs, evaluate their last and their best checkpoints and the other models, and return it all."""
        arms = {name: self._arm(run_id) for name, run_id in runs.items()}
        if "D" in arms:
            arms["E"] = self._imitation(arms["D"])
        models = dict.fromkeys([*others, *(arm[which] for arm in arms.values() for which in ("last", "best"))])
        return {"arms": arms, "success": self._success(list(models))}

    def _arm(self, run_id: str) -> Figures:
        run = self.ended(f"/runs/{run_id}")
        model = f"{run['model']['project']}/{run['model']['name']}"
        sampled = self.service.trajectories(run_id, kind="train", limit=200)
        return {
            "run_id": run_id,
            "tokens": sum(trajectory["completion_tokens"] for trajectory in sampled),
            "seconds": run["cost"]["seconds"],
            "last": f"{model}@{run['iterations'][-1]['step']}",
            "best": f"{model}@{run['best_checkpoint']['step']}",
        }

    def _imitation(self, arm: Figures) -> Figures:
        """Return the figures of a run with a warm start, as if it had ended with that."""
        supervised = [iteration for iteration in self.service.iterations(arm["run_id"]) if iteration["supervised"]]
        model = f"{arm['last'].partition('@')[0]}@{supervised[-1]['step']}"
        seconds = sum(iteration["timing"]["total_s"] for iteration in supervised)
        return {"run_id": arm["run_id"], "tokens": 0, "seconds": seconds, "last": model, "best": model}

    def _success(self, models: Sequence[str]) -> Figures:
        common = {
            "models": [{"model": model, "label": model} for model in models],
            "environment": {"name": "email_search"},
            "judge": _RIGHT,
            "scenarios": self.size.scenarios,
            "seed": self.seed,
            "concurrency": 64,
        }
        ids = {mode: self.post(mode, "/evaluations", common | request) for mode, request in _MODES.items()}
        success: Figures = {model: {} for model in models}
        for mode, started in ids.items():
            for model_report in self.ended(f"/evaluations/{started['evaluation_id']}")["report"]["models"]:
                success[model_report["label"]][mode] = model_report["success"]["mean"]
        return success


def right(work: Work) -> Figures:
    """Return the figures of the base and of arm A."""
    return work.arms({"A": work.run("A", _RIGHT)}, _BASE)


def wrong(work: Work) -> Figures:
    """Return the figures of the run with the bug and of the arms that start from it."""
    spared = SyntheticEmailSearch().scenarios("train", _SPARED * work.size.groups, work.seed)
    run_id = work.run("P", {"name": "dates", "config": {"spared": [scenario.id for scenario in spared]}})
    step, remaining = work.step_after(run_id, _SPARED), work.size.iterations - _SPARED
    runs = {"P": run_id, "B": work.fork("B", run_id, step, iterations=remaining)}
    work.ended(f"/runs/{run_id}")
    rejudging = work.post("rejudge", f"/runs/{run_id}/rejudge", {"judge": _RIGHT})["evaluation_id"]
    report = work.ended(f"/evaluations/{rejudging}")["report"]["rejudge"]
    stored = work.post("best", f"/runs/{run_id}/demonstrations", _BEST | {"rejudging": rejudging})
    warm_start = {"demonstrations": {"dataset": f"{stored['name']}@{stored['version']}"}}
    then = min(_AFTER_IMITATION, remaining)
    runs["D"] = work.fork("D", run_id, step, warm_start=warm_start, iterations=then)
    planted = {"first_changed": report["first_changed"], "text": report["text"], "demonstrations": stored["kept"]}
    return work.arms(runs) | {"planted": planted}


SIDES: Mapping[str, Callable[[Work], Figures]] = {"wrong": wrong, "right": right}
"""What the services of a seed do; the longer one begins."""


def figures_of(directory: Path, seed: int, side: str, size: Size, variables: Mapping[str, str]) -> Figures:
    """Return one side's figures of a seed: those of an earlier call, or what its service finds now.

    `variables` are added to the service's environment.
    """
    file = directory / f"{seed}-{side}.json"
    if file.exists():
        figures: Figures = json.loads(file.read_text())
        return figures
    data_dir = directory / f"{seed}-{side}"
    with own_service(data_dir, waiting=lambda _: None, variables=variables) as service:
        figures = SIDES[side](Work(service, seed, size))
    written = file.with_suffix(".part")
    written.write_text(json.dumps(figures, indent=2))
    written.rename(file)
    return figures


def rows_of(seed: int, right: Figures, wrong: Figures) -> dict[str, Figures]:
    """Return the figures of a seed's arms by name."""
    arms, success = right["arms"] | wrong["arms"], right["success"] | wrong["success"]
    base = success[_BASE]
    return {
        name: {
            "seed": seed,
            "tokens": arms[name]["tokens"],
            "share": arms[name]["tokens"] / arms["A"]["tokens"],
            **{
                f"{mode}_{which}": success[arms[name][which]][mode] - base[mode]
                for which, mode in product(("last", "best"), _MODES)
            },
            "seconds": arms[name]["seconds"],
        }
        for name in ("A", "P", "B", "D", "E")
    }


def line_of(name: str, row: Figures) -> str:
    """Return a row of the printed table."""
    gains = (f"{row[f'{mode}_{which}']:+.3f}" for which, mode in product(("last", "best"), _MODES))
    cells = (str(row["seed"]), name, f"{row['tokens']:,.0f}", f"{row['share']:.0%}", *gains, f"{row['seconds']:.0f}")
    return f"| {' | '.join(cells)} |"


_TITLE = """\
| seed | arm | tokens | share of A's | greedy gain | sampled gain | greedy, best | sampled, best | seconds |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def means(seeds: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """Return the means over seeds by arm."""
    return {
        arm: {"seed": "mean"}
        | {name: fmean(seed_figures[arm][name] for seed_figures in seeds) for name in seeds[0][arm] if name != "seed"}
        for arm in seeds[0]
    }


def verdict(seeds: Sequence[Mapping[str, Figures]]) -> str:
    """Return whether the goal was reached, with the figures that decide it."""
    gains = [
        arms["D"]["greedy_last"] / arms["A"]["greedy_last"] if arms["A"]["greedy_last"] > 0 else float("nan")
        for arms in seeds
    ]
    tokens = fmean(arms["D"]["share"] for arms in seeds)
    reached = fmean(gains) >= _GAIN and tokens <= _TOKENS and all(gain >= _LEAST_GAIN for gain in gains)
    return (
        f"D has {fmean(gains):.0%} of A's greedy gain with {tokens:.0%} of its tokens (mean of {len(seeds)} seeds; "
        f"{', '.join(f'{gain:.0%}' for gain in gains)}). The goal, {_GAIN:.0%} with {_TOKENS:.0%} and none below "
        f"{_LEAST_GAIN:.0%}, was {'reached' if reached else 'missed'}."
    )


def compare(directory: Path, seeds: Sequence[int], size: Size, parallel: int, variables: Mapping[str, str]) -> None:
    """Run everything that is missing, print each seed's table when it is known, and at the end the means."""
    by_seed: dict[int, dict[str, Figures]] = {seed: {} for seed in seeds}
    rows: list[dict[str, Figures]] = []
    print(_TITLE, flush=True)
    with ThreadPoolExecutor(parallel) as pool:
        jobs = {
            pool.submit(figures_of, directory, seed, side, size, variables): (seed, side)
            for side, seed in product(SIDES, seeds)
        }
        for future in as_completed(jobs):
            seed, side = jobs[future]
            if (error := future.exception()) is not None:
                print(f"seed {seed}, {side}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            by_seed[seed][side] = future.result()
            if len(by_seed[seed]) == len(SIDES):
                rows.append(rows_of(seed, **by_seed[seed]))
                for name, row in rows[-1].items():
                    print(line_of(name, row), flush=True)
    if len(rows) < len(seeds):
        raise SystemExit("some seeds are not complete: another call with the same --directory continues them")
    rows.sort(key=lambda arms: arms["A"]["seed"])
    for name, row in means(rows).items():
        print(line_of(name, row))
    for seed, sides in by_seed.items():
        planted = sides["wrong"]["planted"]
        print(f"seed {seed}: first_changed {planted['first_changed']}, expected {_SPARED + 1}; {planted['text']}")
        print(f"  {planted['demonstrations']} rollouts were imitated")
    print(verdict(rows))


def main() -> None:
    """Print the table, and whether the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2, 3, 4])
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="services at the same time")
    parser.add_argument("--engine", default="", metavar="FLAGS", help="of each service's engine, such as '--threads 2'")
    parser.add_argument("--directory", type=Path, help="keeps the data, so that another call can go on")
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=8, help="in a group")
    parser.add_argument("--scenarios", type=int, default=64, help="held-out ones that the gain is measured on")
    options = parser.parse_args()
    if options.iterations <= _SPARED:
        parser.error(f"--iterations: at least {_SPARED + 1}, because the bug spares the first {_SPARED}")
    size = Size(options.iterations, options.groups, options.rollouts, options.scenarios)
    print(json.dumps({**processes.machine(), "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "engine": options.engine}))
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name, judges_installed(Path(name) / "judges") as judges:
        directory = options.directory or Path(name) / "data"
        directory.mkdir(parents=True, exist_ok=True)
        variables = {**judges, "LEARNLOOP_ENGINE_ARGS": options.engine, "LEARNLOOP_MAX_CONCURRENT_RUNS": "4"}
        compare(directory.absolute(), options.seeds, size, options.parallel, variables)


if __name__ == "__main__":
    main()
