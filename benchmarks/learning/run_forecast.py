"""How right the forecasts of runs are (app/runs/forecast.py).

    python -m benchmarks.learning.run_forecast [--new 20] [--first 0]

Replays the 150 recorded healthy runs of the tiny base (14 iterations): at several times a forecast is made of the last
held-out evaluation, by what was saved until then. A forecast that is not within 20% of the truth often enough has to be
silent. Of each time it prints how many runs had a forecast, how many of those were within 20% of the truth, and how
many of the 90% intervals, of all runs and of those with a forecast, covered it. `--new N` makes N small runs by the
whole service instead, and compares their forecasts at 30% of their iterations: success, minutes, tokens and dollars.

Fails if at any time fewer than 9 of 10 forecasts are within 20%, if the intervals of all runs cover the truth in fewer
than 90% or more than 99%, or if at 30% of the run fewer than 9 of 10 of all runs have a forecast within 20%; of new
runs, if fewer than 9 of 10 figures of a kind are within 20%.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks import processes
from benchmarks.durability.harness import serving, workplace
from benchmarks.learning.healthy_runs import Recorded, plan_of, read
from benchmarks.learning.recorded_faults import RECORDED
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.statistics.learning_curve import CurvePoint, interval
from learnloop_service.training.stopping import Stopping

_NEAR = 0.2
_LEAST, _LEAST_COVERED, _MOST_COVERED = 0.9, 0.9, 0.99
_EARLY = 4
"""30% of 14 iterations."""
_AT = (_EARLY, 6, 8, 9, 10, 11, 12, 13)
_PRICE = "1.0"
_KINDS: Sequence[Mapping[str, Json]] = (
    {"environment": "email_search"},
    {"environment": "sales_email"},
    {"environment": "email_search", "groups_per_iteration": 4, "rollouts_per_group": 4},
)


def point_of(facts: Facts) -> CurvePoint:
    """Return what a service saves of an iteration."""
    scored = sum(group.scored for group in facts.groups)
    success = sum(group.successes for group in facts.groups) / scored if scored else None
    return CurvePoint(facts.iteration, success, scored, facts.held_out.sampled if facts.held_out else None)


def near(expected: float, truth: float) -> bool:
    """Whether a forecast is within 20% of the truth."""
    return abs(expected - truth) <= _NEAR * truth


def replayed(run: Recorded, at: int) -> dict[str, bool]:
    """Return how a forecast after an iteration fares."""
    config = plan_of(run.kind, run.seed).config
    points = [point_of(facts) for facts in run.facts]
    curve = Stopping(config, points[: at + 1]).fitted()
    held_out = points[config.iterations].held_out
    assert held_out is not None
    if curve is None:  # silent, without an interval
        return {"forecast": False}
    truth, (expected, low, high) = fmean(held_out.values()), interval(curve.evaluation(config.iterations))
    return {
        "forecast": curve.is_sure(config.iterations),
        "near": near(expected, truth),
        "covered": low - 1e-9 <= truth <= high + 1e-9,
    }


def row_of(runs: Sequence[Recorded], at: int) -> dict[str, Any]:
    """Return the figures of all runs at a time."""
    made = [replayed(run, at) for run in runs]
    spoken = [of for of in made if of["forecast"]]
    fitted = [of for of in made if "near" in of]
    return {
        "iteration": at,
        "runs": len(runs),
        "forecasts": len(spoken),
        "near": sum(of["near"] for of in spoken),
        "near_if_never_silent": sum(of["near"] for of in fitted),
        "covered": None if not fitted else round(fmean(of["covered"] for of in fitted), 3),
        "covered_of_forecasts": None if not spoken else round(fmean(of["covered"] for of in spoken), 3),
    }


def faults_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which goals are missed."""
    faults = []
    for row in rows:
        where = f"after iteration {row['iteration']}"
        if row["near"] < _LEAST * row["forecasts"]:
            faults.append(f"{where} {row['near']} of {row['forecasts']} forecasts are near")
        if row["covered"] is not None and not _LEAST_COVERED <= row["covered"] <= _MOST_COVERED:
            faults.append(f"{where} intervals cover {row['covered']:.1%}")
        if row["iteration"] == _EARLY and row["near"] < _LEAST * row["runs"]:
            faults.append(f"{where}, at 30%, {row['near']} of {row['runs']} runs have a forecast that is near")
    return faults


def new_run(client: Any, seed: int) -> dict[str, Any]:
    """Make a small run, and return its forecasts at 30% beside what came."""
    request = {**_KINDS[seed % len(_KINDS)], "seed": 1_000 + seed, "iterations": 10}
    request |= {"evaluation": {"every": 2, "test_scenarios": 24}}
    run_id = client.call("POST", "/learn-loop", json=request)["run_id"]
    early: Any = None
    while (run := client.call("GET", f"/runs/{run_id}"))["status"] in ("queued", "running"):
        if run["progress"]["iterations_done"] >= 3 and early is None and (run["forecast"] or {}).get("end"):
            early = run["forecast"]["end"], run["progress"]["iterations_done"]
        time.sleep(0.3)
    assert early is not None
    forecast, done = early
    rows = client.call("GET", f"/runs/{run_id}/ledger", params={"limit": 200})["items"]
    later = [row for row in rows if row["iteration"] > done]
    last = [of for of in run["evaluations"] if (of["split"], of["mode"]) == ("validation", "sampled")][-1]
    truths = {
        "success": last["success"],
        "minutes": sum(row["seconds"] for row in later) / 60,
        "tokens": sum(row["prompt_tokens"] + row["completion_tokens"] for row in later),
        "usd": sum((row["usd"] or 0.0) + (row["machine_usd"] or 0.0) for row in later),
    }
    shown = {name: [truth, *forecast.get(name, ())] for name, truth in truths.items()}
    print(json.dumps({"seed": seed, "at": done, "status": run["status"], **shown}), flush=True)
    return shown


def new_faults(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print how the forecasts of new runs fared, and return which goals are missed."""
    faults = []
    for name in ("success", "minutes", "tokens", "usd"):
        made = [of[name] for of in runs if len(of[name]) > 1]
        right = sum(near(expected, truth) for truth, expected, *_ in made)
        covered = sum(low <= truth <= high for truth, _, low, high in made)
        print(
            json.dumps({"figure": name, "runs": len(runs), "forecasts": len(made), "near": right, "covered": covered})
        )
        if right < _LEAST * len(runs):
            faults.append(f"{name}: {right} of {len(runs)} are forecast within 20%")
    return faults


def main() -> None:
    """Replay recorded runs, or make new ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new", type=int, default=0, help="number of new runs to make instead")
    parser.add_argument("--first", type=int, default=0, help="number of the first new run")
    options = parser.parse_args()
    if options.new:
        with workplace() as directory:
            port = free_port()
            with serving(directory / "data", port, {"LEARNLOOP_MACHINE_PRICE_PER_HOUR": _PRICE}) as it:
                runs = [new_run(it.client, number) for number in range(options.first, options.first + options.new)]
        faults = new_faults(runs)
    else:
        recorded = read(RECORDED)
        rows = [row_of(recorded, at) for at in _AT]
        for row in rows:
            print(json.dumps(row), flush=True)
        faults = faults_of(rows)
    print(json.dumps({"missed": faults} | processes.machine()))
    raise SystemExit("; ".join(faults) or None)


if __name__ == "__main__":
    main()
