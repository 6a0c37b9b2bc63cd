"""Passes the tool calls of a rollout to its episode."""

import json

from learnloop_service.environment.base import Episode, Json, ToolError, ToolResult
from learnloop_service.environment.full_context import is_full_context
from learnloop_service.environment.genai_spans import execute_tool
from learnloop_service.training.rollout.environment_calls import watched


async def call_tool(episode: Episode, name: str, arguments: str, call_id: str) -> ToolResult:
    """Execute a tool call, given its arguments as the text that the model wrote. Raises ToolError."""
    with execute_tool(name, call_id=call_id, arguments=arguments) as traced:
        result = await watched(episode, episode.call, name, _arguments(name, arguments))
        traced.output = result.content
    return result


def _arguments(name: str, text: str) -> dict[str, Json]:
    """Parse the arguments of a tool call. Raises ToolError."""
    try:
        arguments = json.loads(text)
        # Lone surrogates are valid JSON but cannot be sent or stored as UTF-8.
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments of {name} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {name} are not an object")
    return arguments


def full_context(error: Exception) -> str | None:
    """Return the message for an episode whose conversation fills the model's context; None for any other error."""
    import openai

    if not isinstance(error, openai.APIStatusError) or not is_full_context(error.status_code, error.code, str(error)):
        return None
    return f"the conversation fills the model's context: {error.message[:500]}"


def out_of_turns(episode: Episode) -> str:
    """Return the message for an episode that has used up its turns."""
    return f"no final answer within {episode.max_turns} turns"
