"""The least that is stored of a run's request."""

from typing import Any


def stored_request(**more: Any) -> dict[str, Any]:
    """With these members besides, or instead."""
    model = {"project": "learnloop", "name": "agent", "base_model": "learnloop/tiny"}
    return {"environment": {"name": "email_search"}, "judge": {"name": "reference"}, "model": model} | more
