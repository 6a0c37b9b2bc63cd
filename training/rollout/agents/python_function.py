"""An agent that is an async function of a task and a model, named by its module path."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from learnloop.outcome import BadOutcome, outcome_of
from learnloop_service.environment.base import Json
from learnloop_service.environment.own_agent.runner import PythonFunction
from learnloop_service.training.rollout.agents.base import AgentModel, AgentTask, NoOutcome

AgentFunction = Callable[[Mapping[str, Json], AgentModel], Awaitable[Json]]
"""A function from a scenario's task and the rollout's model to the outcome: an object with reward, parts, output or
reason; a number (the reward); None (no outcome); or any other JSON (the output)."""


class FunctionAgent:
    """An agent that calls the function for each rollout."""

    def __init__(self, name: str, function: AgentFunction) -> None:
        self.name = name
        self._function = function

    async def run(self, task: AgentTask) -> str:
        try:
            outcome = outcome_of(await self._function(task.task, replace(task.model, prompt=task.prompt)))
        except BadOutcome as error:
            raise NoOutcome(f"it returned {error}") from error
        if not outcome.known:
            raise NoOutcome(outcome.reason or "it gave no reason")
        return outcome.text()


def load_function(named: PythonFunction, allowed: Sequence[str]) -> FunctionAgent:
    """Load the agent. Raises ValueError unless the function is async and in one of the `allowed` modules or their
    submodules."""
    if not any(named.module == module or named.module.startswith(f"{module}.") for module in allowed):
        raise ValueError(
            f"functions of the module {named.module} may not be run here: the operator allows modules in "
            "LEARNLOOP_AGENT_MODULES"
        )
    try:
        function: Any = getattr(importlib.import_module(named.module), named.function)
    except AttributeError as error:
        raise ValueError(f"the module {named.module} has no {named.function}") from error
    except Exception as error:
        raise ValueError(f"the module {named.module} cannot be imported: {type(error).__name__}: {error}") from error
    if not inspect.iscoroutinefunction(function):
        raise ValueError(f"{named} is not an async function")
    return FunctionAgent(str(named), function)
