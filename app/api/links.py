"""Where the things of the API lie."""


def run_links(run_id: str) -> dict[str, str]:
    """A run and what belongs to it."""
    own = f"/runs/{run_id}"
    parts = {name: f"{own}/{name}" for name in ("iterations", "trajectories", "checkpoints", "cancel")}
    return {"self": own, **parts}
