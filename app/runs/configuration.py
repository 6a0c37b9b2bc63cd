"""From a stored request to what the learn loop takes."""

from pathlib import Path

import environment.registry
import judges.registry
import training.agents.registry
from app.db.tables import Run
from app.domain.stored_request import Choice
from environment.base import Environment
from judges.base import Judge, JudgeServices
from training.agents.base import Agent
from training.backends.base import ModelSpec


def make_environment(choice: Choice, data_dir: Path) -> Environment:
    """Raises UnknownEnvironment, ValueError for a bad config, or PluginFault."""
    return environment.registry.build(choice.name, choice.config, data_dir)


def make_judge(choice: Choice, services: JudgeServices) -> Judge:
    """Raises UnknownJudge, ValueError for a bad config, or PluginFault."""
    return judges.registry.build(choice.name, choice.config, services)


def make_agent(choice: Choice | None) -> Agent | None:
    """Raises UnknownAgent, ValueError for a bad config, or PluginFault."""
    return None if choice is None else training.agents.registry.build(choice.name, choice.config)


def model_spec(run: Run) -> ModelSpec:
    """The model that the run trains."""
    return ModelSpec(run.model_project, run.model_name, run.base_model)
