"""Count the false alarms of the diagnoses in real runs of the tiny base, which all learn.

    python -m benchmarks.learning.healthy_runs [--runs 20] [--iterations 14]

The runs of both environments have different seeds, one service, and otherwise defaults. Prints each run's verdict and
every cause that was named, and fails if a run that learned has one.
"""

import argparse
import json
import math
import tempfile
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from app.cli.client import Service
from app.cli.service_process import free_port
from benchmarks import processes

ENVIRONMENTS = ("email_search", "sales_email")
_ENDED = ("completed", "failed", "cancelled", "paused")


def _has_ended(service: Service, run_id: str) -> bool:
    return service.run(run_id)["status"] in _ENDED


def outcome(service: Service, run_id: str) -> dict[str, Any]:
    """Return how a run that has ended went, and the causes that were named at any time."""
    run = service.run(run_id)
    named = service.diagnosis(run_id)["diagnoses"]
    return {
        "environment": run["environment"],
        "status": run["status"],
        "verdict": run["verdict"]["state"],
        "points": run["verdict"]["points"],
        "causes": [f"{each['cause']} at {each['named_at_iteration']}: {each['summary']}" for each in named],
    }


def main() -> None:
    """Run them one after the other, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=14)
    options = parser.parse_args()
    alarms, learned, port = 0, 0, free_port()
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as directory,
        processes.service(Path(directory), port) as child,
        Service(f"http://127.0.0.1:{port}") as service,
    ):
        processes.wait_for(child, processes.answers(service))
        for seed, environment in enumerate(islice(cycle(ENVIRONMENTS), options.runs)):
            request = {"environment": {"name": environment}, "seed": seed, "iterations": options.iterations}
            run_id = service.start_run(request)["run_id"]
            processes.wait_for(child, partial(_has_ended, service, run_id), pause_s=1, most_s=math.inf)
            found = outcome(service, run_id)
            print(json.dumps(found), flush=True)
            learned += found["verdict"] == "learned"
            alarms += bool(found["causes"]) and found["verdict"] == "learned"
    print(json.dumps({"runs": options.runs, "learned": learned, "learned_with_a_cause": alarms, **processes.machine()}))
    if alarms:
        raise SystemExit("a run that learned has a diagnosis")


if __name__ == "__main__":
    main()
