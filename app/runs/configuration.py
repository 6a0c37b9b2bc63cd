"""Builds what the learn loop takes from a stored request."""

from collections.abc import Sequence
from pathlib import Path

import learnloop_service.environment.registry
import learnloop_service.judges.registry
import learnloop_service.training.rollout.agents.registry
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.environment.access import Access
from learnloop_service.environment.base import Environment
from learnloop_service.environment.own_agent.environment import NAME as OWN_AGENT
from learnloop_service.environment.own_agent.environment import REPLACE
from learnloop_service.environment.own_agent.runner import PythonFunction, Runner, parse_runner
from learnloop_service.environment.registry import traits
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.rollout.agents.base import Agent
from learnloop_service.training.rollout.agents.python_function import load_function
from learnloop_service.training.rollout.rollout import Player


def make_environment(choice: Choice, data_dir: Path, access: Access | None = None) -> Environment:
    """Build the environment. Without `access` it opens no episode that uses servers or other processes.

    Raises UnknownEnvironment, ValueError for a bad config or something that the operator does not allow, or
    PluginFault.
    """
    return learnloop_service.environment.registry.build(choice.name, choice.config, data_dir, access)


def make_judge(choice: Choice, services: JudgeServices) -> Judge:
    """Build the judge. Raises UnknownJudge, ValueError for a bad config, or PluginFault."""
    return learnloop_service.judges.registry.build(choice.name, choice.config, services)


def make_agent(choice: Choice | None) -> Agent | None:
    """Build the agent, if any. Raises UnknownAgent, ValueError for a bad config, or PluginFault."""
    return (
        None if choice is None else learnloop_service.training.rollout.agents.registry.build(choice.name, choice.config)
    )


def make_player(choice: Choice | None, environment: Choice, modules: Sequence[str]) -> Player | None:
    """Build the player that replaces the built-in loop, if any. Raises like `make_agent` and `make_own_agent`."""
    return make_own_agent(environment, modules) or make_agent(choice)


def runner_of(environment: Choice) -> Runner | None:
    """Return how tasks reach the user's own agent, or None in other environments. Raises ValueError."""
    return parse_runner(environment.config.get("runner")) if environment.name == OWN_AGENT else None


def is_replaced(environment: Choice) -> bool:
    """Return whether prompts replace texts of the agent's requests on their way."""
    return environment.name == OWN_AGENT and environment.config.get("prompt") == REPLACE


def make_own_agent(environment: Choice, modules: Sequence[str]) -> Agent | None:
    """Build the agent that the environment brings, if any: its own loop, or the function that it names.

    `modules` are those whose functions the operator allows. Raises ValueError.
    """
    if (build := traits(environment.name).agent) is not None:
        agent: Agent = build(environment.config)
        return agent
    runner = runner_of(environment)
    return load_function(runner, modules) if isinstance(runner, PythonFunction) else None


def model_spec(run: Run) -> ModelSpec:
    """Return the model that the run trains."""
    model = run.stored_request.model
    return ModelSpec(run.model_project, run.model_name, run.base_model, model.tuning, model.enable_thinking)
