"""Paths of the API that responses link to."""

VERBS = ("cancel", "pause", "resume", "retry", "fork")
"""What can be done to a run by POST; DELETE on the run itself deletes it."""
_PARTS = (
    "iterations",
    "trajectories",
    "checkpoints",
    "results",
    "node-scores",
    "judge-calls",
    "feedback",
    "events",
    *VERBS,
)


def run_links(run_id: str) -> dict[str, str]:
    """Paths of a run and of what belongs to it."""
    own = f"/runs/{run_id}"
    return {"self": own, **{name: f"{own}/{name}" for name in _PARTS}}


def results_path(run_id: str) -> str:
    """Path of the list of a run's results; the documents are below it."""
    return f"/runs/{run_id}/results"
