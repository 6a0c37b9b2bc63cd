"""What the frontend is told about an iteration."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

from app import stored_json
from app.runs.showcase import final_email, shows_email
from app.runs.state import RunStatus
from training.types import IterationResult


def iteration_data(result: IterationResult) -> dict[str, Any]:
    """What is told of an iteration beside whose it is and when it ended."""
    return {
        "iteration": result.iteration,
        "status": RunStatus.RUNNING,
        "rewards": asdict(result.rewards),
        "success": result.success,
        "step": result.step,
        **_shown(result),
    }


def iteration_delivery(run_id: str, result: IterationResult, url: str) -> dict[str, Any]:
    """The delivery row of one iteration; its body is fixed here, so that every attempt sends the same bytes."""
    envelope = {
        "type": "iteration.completed",
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run_id": run_id,
    }
    return {
        "id": str(ULID()),
        "run_id": run_id,
        "iteration": result.iteration,
        "url": url,
        "body": stored_json.dumps(envelope | iteration_data(result)),
    }


def _shown(result: IterationResult) -> dict[str, Any]:
    """The email and the node scores, where the environment has them. To send feedback, name the `trajectory_id`."""
    if result.reflection is None:
        return {}
    showcase, scores = result.reflection.showcase.rollout, result.reflection.state.get("node_scores")
    shown: dict[str, Any] = {"trajectory_id": showcase.id}
    if shows_email(showcase.outcome):
        shown |= {
            "final_email": final_email(showcase.outcome),
            "email_written": bool(showcase.outcome.get("email")),
        }
    return shown if scores is None else shown | {"node_scores": dict(scores)}
