"""The minimum that is stored of a run's request."""

from typing import Any


def stored_request(**more: Any) -> dict[str, Any]:
    """Return the request with these members added or replaced."""
    model = {"project": "learnloop", "name": "agent", "base_model": "learnloop/tiny"}
    return {"environment": {"name": "email_search"}, "judge": {"name": "reference"}, "model": model} | more
