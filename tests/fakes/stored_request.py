"""The minimum that is stored of a run and of its request."""

from typing import Any

from ulid import ULID

from learnloop_service.app.db.tables import Run


def stored_request(**more: Any) -> dict[str, Any]:
    """Return the request with these members added or replaced."""
    model = {"project": "learnloop", "name": "agent", "base_model": "learnloop/tiny"}
    return {"environment": {"name": "email_search"}, "judge": {"name": "reference"}, "model": model} | more


def stored_run(**more: Any) -> Run:
    """Return the row of a queued run with these columns added or replaced. Its model is named after it."""
    id = more.get("id", str(ULID()))
    model = {"model_project": "learnloop", "model_name": id, "base_model": "learnloop/tiny"}
    chosen = {"environment": "email_search", "judge": "reference", "backend": "embedded", "iterations_total": 1}
    return Run(**({"id": id, "request": stored_request()} | model | chosen | more))
