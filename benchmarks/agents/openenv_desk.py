"""An OpenEnv server with tools, for benchmarks.learning.openenv_environment; it runs where the package `openenv` is.

The desk is empty: there is nothing to search or to read, and the agent should say so early.
"""

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

_PER_CALL, _FOR_AN_END = -0.2, 1.0


class Desk(MCPEnvironment):  # type: ignore[misc]  # the package need not be there
    """An environment in which each call costs a little, and the call that ends the episode is rewarded."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("desk")
        server.tool(search_inbox)
        server.tool(read_email)
        server.tool(return_final_answer)
        self._state = State(episode_id=str(uuid4()))
        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self._state = State(episode_id=episode_id or str(uuid4()))
        return Observation()

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        observation = await super().step_async(action, timeout_s, **more)
        if isinstance(observation, CallToolObservation):
            self._state.step_count += 1
            if observation.error is None and observation.tool_name == "return_final_answer":
                return observation.model_copy(update={"reward": _FOR_AN_END, "done": True})
            return observation.model_copy(update={"reward": _PER_CALL})
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return self._state


def search_inbox(keywords: list[str]) -> str:
    """Find mails that hold all the keywords."""
    return "No mail has these words."


def read_email(email_id: str) -> str:
    """Read one mail by its id."""
    return f"There is no mail {email_id}."


def return_final_answer(answer: str, sources: list[str]) -> str:
    """End with the answer and the ids of the mails it rests on."""
    return "Thank you."


app = create_app(Desk, CallToolAction, CallToolObservation, env_name="desk", max_concurrent_envs=16)
