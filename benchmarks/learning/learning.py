"""Measure how much a demo's agent learns, over several seeds: `make bench-learning`.

Runs `learnloop demo --json` for one environment, once per seed and each in a fresh directory; prints the held-out
figures with mean and spread.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

GOALS = {"email_search": {"sampled": 0.35, "greedy": 0.25}, "sales_email": {"sampled": 0.25}}
"""Required rise in held-out success, by environment and mode."""


def run_demo(environment: str, seed: int, iterations: int | None) -> dict[str, Any]:
    """Run one demo (None: with its own length) and return its document. Raises CalledProcessError if it failed."""
    with tempfile.TemporaryDirectory(prefix="learnloop-") as data_dir:
        command = [sys.executable, "-m", "app.cli", "demo", "--json", "--data-dir", data_dir]
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


def figures_table(documents: list[dict[str, Any]]) -> Table:
    """Build a table with a row per seed."""
    table = Table("seed", "sampled", "greedy", "reward", "malformed", "seconds", "tokens/s", box=None, pad_edge=False)
    for document in documents:
        pairs = (document["held_out"]["sampled"], document["held_out"]["greedy"], document["mean_reward"])
        table.add_row(
            str(document["seed"]),
            *(f"{pair['before']:.2f} -> {pair['after']:.2f}" for pair in (*pairs, document["malformed"])),
            f"{document['seconds']:.0f}",
            f"{document['tokens_per_s']:,.0f}",
        )
    return table


def main() -> None:
    """Run the seeds in turn and print what was learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environment", choices=GOALS, default="email_search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, help="the demo's own number if none is given")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args()
    documents = [run_demo(arguments.environment, seed, arguments.iterations) for seed in arguments.seeds]
    result = summary(documents)
    if arguments.json:
        print(json.dumps({**result, "runs": documents}, indent=2))
        return
    console = Console(highlight=False)
    console.print(figures_table(documents))
    for mode in GOALS[arguments.environment]:
        rise = result[mode]
        verdict = "reached" if rise["reached"] else "not reached"
        figures = f"{rise['mean']:+.2f} (spread {rise['spread']:.2f})"
        console.print(f"held-out success, {mode}: {figures}, goal {rise['goal']:+.2f} {verdict}")


if __name__ == "__main__":
    main()
