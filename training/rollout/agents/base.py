"""An agent that owns its loop: it decides what its model is asked, when its tools are called, and when it is done.

It is given a scenario's opening messages and tools and a model behind OpenAI's API, and answers with its output. What
it asks its model is recorded and trained; what it does with its tools, the environment judges as it judges the built-in
loop.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from environment.base import Json, Tool

if TYPE_CHECKING:
    import httpx

CallTool = Callable[[str, str, str], Awaitable[str]]
"""From a tool's name, the arguments as JSON text and the call's id to the result."""


@dataclass(frozen=True, slots=True)
class AgentModel:
    """The model of one rollout, for any client of OpenAI's chat completions that takes an HTTP client of httpx.

    How it samples (temperature, seed, log-probabilities) is the run's decision: what the agent says of that is ignored.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str
    http_client: "httpx.AsyncClient"
    """The way to the model: nothing listens at `base_url`."""
    sync_http_client: "httpx.Client"
    """The same for clients that block; from any thread but the event loop's."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What an agent is given of a scenario, for one rollout."""

    messages: Sequence[Mapping[str, Json]]
    """The opening: system prompt and task, in OpenAI's form."""
    tools: Sequence[Tool]
    call_tool: CallTool
    """Executes a tool call. What an unknown tool or bad arguments bring about is the environment's decision: it ends
    the rollout, as it does in the built-in loop."""
    max_turns: int
    """Requests to the model, of whatever kind; the next one ends the rollout."""
    model: AgentModel
    task: Mapping[str, Json] = field(default_factory=dict)
    """The scenario's task as the environment keeps it."""


class Agent(Protocol):
    """A kind of agent. An instance serves many rollouts at the same time."""

    @property
    def name(self) -> str:
        """What messages and logs call it."""

    async def run(self, task: AgentTask) -> str:
        """Do the task; returns what the agent says in the end, which counts where no tool call ended the rollout.

        It runs on a thread and an event loop of its own, so that it may block. Where it raises before the rollout is
        over, the rollout failed: it counts neither as good nor as bad.
        """
