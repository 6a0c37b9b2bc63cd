"""What the frontend is told about an iteration."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

from app.runs.state import RunStatus
from training.types import IterationResult


def iteration_delivery(run_id: str, result: IterationResult, url: str) -> dict[str, Any]:
    """The delivery row of one iteration; its body is fixed here, so that every attempt sends the same bytes."""
    body = {
        "type": "iteration.completed",
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run_id": run_id,
        "iteration": result.iteration,
        "status": RunStatus.RUNNING,
        "rewards": asdict(result.rewards),
        "success": result.success,
        "step": result.step,
    }
    return {
        "id": str(ULID()),
        "run_id": run_id,
        "iteration": result.iteration,
        "url": url,
        "body": json.dumps(body, allow_nan=False),
    }
