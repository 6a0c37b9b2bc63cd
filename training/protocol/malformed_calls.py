"""How a reply says that its text looks like a tool call and cannot be read as one."""

import json
from collections.abc import Mapping

from learnloop_service.environment.json_type import Json

MALFORMED = "malformed_tool_call"
"""Field of a choice of a chat completion, of the choice's last chunk in a stream, and of a response: a sentence that
says why. Replies that can be read do not have it, nor have those of other servers."""


def is_malformed(completion: Mapping[str, Json]) -> bool:
    """Return whether the completion has a tool call that cannot be read, whichever server it is from."""
    return any(_is_malformed_choice(choice) for choice in completion.get("choices") or ())


def is_malformed_response(response: Mapping[str, Json]) -> bool:
    """Return whether a response of OpenAI's Responses API has a tool call that cannot be read."""
    calls = [item for item in response.get("output") or () if item.get("type") == "function_call"]
    return bool(response.get(MALFORMED)) or not all(map(_has_object, calls))


def _is_malformed_choice(choice: Mapping[str, Json]) -> bool:
    calls = (choice.get("message") or {}).get("tool_calls") or ()
    readable = all(isinstance(call, dict) and _has_object(call.get("function")) for call in calls)
    return bool(choice.get(MALFORMED)) or not readable


def _has_object(call: Json) -> bool:
    """Return whether the call's arguments are the text of a JSON object. An empty text counts as one, because some
    servers send it for a call without arguments."""
    arguments = call.get("arguments") if isinstance(call, dict) else None
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        return False
