"""How a reply says which of the request's stop strings ended it, in vLLM's form."""

from collections.abc import Collection, Mapping

from learnloop_service.environment.json_type import Json

STOP_REASON = "stop_reason"
"""Field of a choice of a chat completion, and of the choice's last chunk in a stream: the stop string. Other replies do
not have it; some servers write null there, or the id of the token that ended the reply."""


def stop_string(choice: Mapping[str, Json], stops: Collection[str]) -> str | None:
    """Return which of the request's stop strings ended the reply, or None."""
    reason = choice.get(STOP_REASON) if choice.get("finish_reason") == "stop" else None
    return reason if isinstance(reason, str) and reason in stops else None
