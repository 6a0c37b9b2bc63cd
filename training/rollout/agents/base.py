"""The interface of an agent that owns its loop and decides what to ask its model, when to call tools, and when to stop.

It receives a scenario's opening messages and tools, and a model behind OpenAI's API, and returns its output. Its model
calls are recorded and trained. The environment judges its tool calls as it judges those of the built-in loop.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from learnloop_service.environment.base import Json, Tool

if TYPE_CHECKING:
    import httpx

CallTool = Callable[[str, str, str], Awaitable[str]]
"""A function from a tool's name, its arguments as JSON text, and the call's id to the result."""


@dataclass(frozen=True, slots=True)
class AgentModel:
    """The model of one rollout, for any client of OpenAI's chat completions that accepts an httpx client.

    The run decides how the model samples (temperature, seed, log-probabilities); the agent's values are ignored.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str
    http_client: "httpx.AsyncClient"
    """A client that passes requests to the model in this process. No server listens at `base_url`."""
    sync_http_client: "httpx.Client"
    """The same for blocking clients. It can be used on any thread except that of the run's event loop."""
    prompt: Mapping[str, str] = field(default_factory=dict)
    """The texts of the rollout's prompt by part, for an agent that brings its own; empty without one."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """The input of an agent for one rollout."""

    messages: Sequence[Mapping[str, Json]]
    """The opening messages in OpenAI's form: system prompt and task."""
    tools: Sequence[Tool]
    call_tool: CallTool
    """Executes a tool call. An unknown tool or bad arguments are handled by the environment: they end the rollout, as
    in the built-in loop."""
    max_turns: int
    """Maximum number of requests to the model, of any kind. One more ends the rollout."""
    model: AgentModel
    task: Mapping[str, Json] = field(default_factory=dict)
    """The scenario's task in the environment's form."""
    prompt: Mapping[str, str] = field(default_factory=dict)
    """The texts of the rollout's prompt by part; empty without one. Those of the environment's system message and tools
    are in `messages` and `tools` already."""


class NoOutcome(Exception):
    """The agent reported that it has no outcome to judge."""


class Agent(Protocol):
    """A kind of agent. One instance serves many rollouts at the same time."""

    @property
    def name(self) -> str:
        """The agent's name in messages and logs."""

    async def run(self, task: AgentTask) -> str:
        """Do the task and return the agent's final output, which counts only if no tool call ended the rollout.

        This runs on a separate thread with its own event loop, so it can block. If it raises before the rollout is
        over, the rollout failed and counts neither as good nor as bad. If it raises anything but NoOutcome after a
        reply that was cut off at its limit, the rollout is malformed.
        """
