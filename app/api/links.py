"""Paths of the API that responses link to."""

VERBS = ("cancel", "pause", "resume", "retry", "fork")
"""Operations on a run by POST. DELETE on the run itself deletes it."""
_PARTS = (
    "iterations",
    "trajectories",
    "rewards",
    "metrics",
    "rollouts",
    "checkpoints",
    "results",
    "report",
    "node-scores",
    "judge-calls",
    "feedback",
    "events",
    "log",
    *VERBS,
)


def run_links(run_id: str) -> dict[str, str]:
    """Return the paths of a run and of its parts."""
    path = f"/runs/{run_id}"
    return {"self": path, **{name: f"{path}/{name}" for name in _PARTS}}


def results_path(run_id: str) -> str:
    """Return the path of the list of a run's results. The documents are under it."""
    return f"/runs/{run_id}/results"
