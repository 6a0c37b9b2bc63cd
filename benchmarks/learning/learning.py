"""Measure how much a demo's agent learns, over several seeds: `make bench-learning`.

Runs `learnloop demo --json` for one environment, once per seed and each in a fresh directory; prints the held-out
figures with mean and spread, and the documents of the demos, as JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from statistics import mean, stdev
from typing import Any

GOALS = {"email_search": {"sampled": 0.35, "greedy": 0.25}, "sales_email": {"sampled": 0.25}}
"""Required rise in held-out success, by environment and mode."""


def run_demo(environment: str, seed: int, iterations: int | None) -> dict[str, Any]:
    """Run one demo (None: with its own length) and return its document. Raises CalledProcessError if it failed."""
    with tempfile.TemporaryDirectory(prefix="learnloop-") as data_dir:
        command = [sys.executable, "-m", "learnloop_service.app.cli", "demo", "--json", "--data-dir", data_dir]
        command += ["--environment", environment, "--seed", str(seed)]
        command += ["--iterations", str(iterations)] if iterations else []
        document: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return document


def summary(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rise in held-out success by mode: each seed's, mean, spread (standard deviation) and goal."""
    environment = documents[0]["environment"]
    result: dict[str, Any] = {"environment": environment, "seeds": [document["seed"] for document in documents]}
    for mode, goal in GOALS[environment].items():
        pairs = [document["held_out"][mode] for document in documents]
        rises = [pair["after"] - pair["before"] for pair in pairs]
        result[mode] = {
            "rises": [round(rise, 4) for rise in rises],
            "mean": round(mean(rises), 4),
            "spread": round(stdev(rises), 4) if len(rises) > 1 else 0.0,
            "goal": goal,
            "reached": mean(rises) >= goal,
        }
    return result


def main() -> None:
    """Run the seeds in turn and print what was learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environment", choices=GOALS, default="email_search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, help="the demo's own number if none is given")
    arguments = parser.parse_args()
    documents = [run_demo(arguments.environment, seed, arguments.iterations) for seed in arguments.seeds]
    print(json.dumps({**summary(documents), "runs": documents}, indent=2))


if __name__ == "__main__":
    main()
