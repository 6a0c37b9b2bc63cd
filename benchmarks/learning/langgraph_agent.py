"""Compare a LangGraph graph with the built-in loop: both learn through `POST /learn-loop` with several seeds.

    python -m benchmarks.learning.langgraph_agent

Each run is `learnloop train` in a fresh directory; the figures are those of its test scenarios before and after. With
the same seed both attempt the same scenarios and, while they send the same requests to their model, sample the same
tokens.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from benchmarks.frozen_code import freeze
from environment.json_type import Json

LOOPS = {"built-in": [], "langgraph": ["--set", "agent.name=langgraph"]}
MODES = ("sampled", "greedy")
MARGIN = 0.05
"""Allowed difference between the mean held-out success rates, sampled."""


def run(code: Path, loop: str, seed: int, iterations: int) -> dict[str, Json]:
    """Run `learnloop train` and return its figures. Raises CalledProcessError if it failed."""
    clock = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as data_dir:
        command = [sys.executable, "-m", "app.cli", "train", "--json", "--data-dir", data_dir, *LOOPS[loop]]
        command += ["--seed", str(seed), "--iterations", str(iterations), "--set", "evaluation.every=1000"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=code).stdout
    return figures(json.loads(output)) | {"seconds": round(time.monotonic() - clock)}


def figures(document: Json) -> dict[str, Json]:
    """Return success on the test scenarios before and after by mode, and each iteration's mean reward."""
    test = sorted((each for each in document["evaluations"] if each["split"] == "test"), key=lambda e: e["iteration"])
    success = {mode: [each["success"] for each in test if each["mode"] == mode] for mode in MODES}
    return success | {"rewards": [row["rewards"]["mean"] for row in document["iterations"] if row["iteration"]]}


def summary(runs: dict[str, list[dict[str, Json]]]) -> dict[str, Json]:
    """Return mean success after training by loop and mode, and the differences between the loops."""
    after = {mode: {loop: mean(each[mode][-1] for each in runs[loop]) for loop in LOOPS} for mode in MODES}
    apart = {mode: after[mode]["langgraph"] - after[mode]["built-in"] for mode in MODES}
    pairs = zip(runs["langgraph"], runs["built-in"], strict=True)
    return {
        "after": after,
        "difference": apart,
        "same_rewards": all(own["rewards"] == other["rewards"] for own, other in pairs),
        "within": abs(apart["sampled"]) <= MARGIN,
    }


def main() -> None:
    """Run both loops with each seed in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Json]]] = {loop: [] for loop in LOOPS}
    table = Table("seed", "loop", *MODES, "seconds", box=None, pad_edge=False)
    with tempfile.TemporaryDirectory() as directory:
        code = freeze(Path(directory))
        for seed, loop in product(arguments.seeds, LOOPS):
            found = run(code, loop, seed, arguments.iterations)
            runs[loop].append(found)
            shown = [f"{found[mode][0]:.2f} -> {found[mode][-1]:.2f}" for mode in MODES]
            table.add_row(str(seed), loop, *shown, str(found["seconds"]))
    result = summary(runs)
    if arguments.json:
        print(json.dumps({**result, "seeds": arguments.seeds, "runs": runs}, indent=2))
        return
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"held-out success, sampled: {result['difference']['sampled']:+.3f} from the built-in loop "
        f"({'within' if result['within'] else 'not within'} {MARGIN}); "
        f"rewards in training {'are equal' if result['same_rewards'] else 'differ'}"
    )


if __name__ == "__main__":
    main()
