"""Where the things of the API lie."""

VERBS = ("cancel", "pause", "resume", "retry", "fork")
"""What a POST asks for of a run; DELETE on the run itself deletes it."""
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
    """A run and what belongs to it."""
    own = f"/runs/{run_id}"
    return {"self": own, **{name: f"{own}/{name}" for name in _PARTS}}


def results_path(run_id: str) -> str:
    """Where a run's results are listed; their documents lie below."""
    return f"/runs/{run_id}/results"
