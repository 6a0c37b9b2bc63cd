"""The JSON document of `learnloop demo --json`. Every figure in it comes from the service's API."""

from collections.abc import Mapping

from learnloop_service.app.cli.held_out import held_out_figures
from learnloop_service.app.cli.run_report import run_seconds
from learnloop_service.environment.json_type import Json


def demo_document(run: Json, examples: Mapping[str, Json], total_s: float) -> Json:
    """Return the whole demo as one document. `examples` is the part that shows the agents at work.

    `total_s` is the total wall time, including the start of the service.
    """
    seconds = run_seconds(run) or 0.0
    return {
        "run_id": run["run_id"],
        "environment": run["environment"],
        "judge": run["judge"],
        "model": run["model"],
        "seed": run["request"]["seed"],
        "best_step": run["best_checkpoint"]["step"] if run["best_checkpoint"] else None,
        "verdict": run["verdict"],
        **held_out_figures(run["evaluations"], "test"),
        "iterations": run["progress"]["iterations_done"],
        "rollouts": run["rollouts"],
        "sampled_tokens": run["tokens"]["completion"],
        "seconds": round(seconds, 2),
        "total_seconds": round(total_s, 2),
        "rollouts_per_s": round(run["rollouts"] / seconds, 2) if seconds else None,
        "tokens_per_s": round(run["tokens"]["completion"] / seconds, 1) if seconds else None,
        **examples,
    }
