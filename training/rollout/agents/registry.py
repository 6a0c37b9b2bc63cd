"""The registry of agents that own their loop: the included one and those of installed packages.

A package adds an agent with an entry point in the group `learnloop.agents` that names a builder: a callable that takes
the request's `agent.config` and returns an Agent.
"""

from collections.abc import Mapping

from learnloop_service.environment import plugins
from learnloop_service.environment.base import Json
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.rollout.agents.base import Agent

GROUP = "learnloop.agents"


class UnknownAgent(Exception):
    """No agent of that name is registered."""


def names() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(plugins.registered(GROUP))


def build(name: str, config: Mapping[str, Json]) -> Agent:
    """Build the agent of that name. Raises UnknownAgent, ValueError for a bad config, or PluginFault."""
    if (point := plugins.registered(GROUP).get(name)) is None:
        raise UnknownAgent(f"Unknown agent {name!r}. Available: {', '.join(names())}.")
    agent: Agent = plugins.build("agent", point, config)
    if not isinstance(getattr(agent, "name", None), str) or not callable(getattr(agent, "run", None)):
        raise PluginFault(f"The agent {name!r}: its builder {point.value} returned no agent with a name and run().")
    return agent
