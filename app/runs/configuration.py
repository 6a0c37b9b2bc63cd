"""From an accepted request to what the learn loop takes. The request is the run's JSON column."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import environment.registry
import judges.registry
from app.db.tables import Run
from environment.base import Environment
from judges.base import Judge, JudgeServices
from training.backends.base import ModelSpec
from training.types import EvaluationConfig, RunConfig

_ELSEWHERE = {"environment", "judge", "model", "backend", "evaluation", "budget", "checkpoints"}


def make_environment(request: Mapping[str, Any], data_dir: Path) -> Environment:
    """Raises UnknownEnvironment, or ValueError for a bad config."""
    choice = request["environment"]
    return environment.registry.build(choice["name"], choice["config"], data_dir)


def make_judge(request: Mapping[str, Any], services: JudgeServices) -> Judge:
    """Raises UnknownJudge, or ValueError for a bad config."""
    choice = request["judge"]
    return judges.registry.build(choice["name"], choice["config"], services)


def run_config(request: Mapping[str, Any]) -> RunConfig:
    """The learn loop's settings."""
    plain = {name: value for name, value in request.items() if name not in _ELSEWHERE}
    return RunConfig(**plain, evaluation=EvaluationConfig(**request["evaluation"]))


def model_spec(run: Run) -> ModelSpec:
    """The model that the run trains."""
    return ModelSpec(run.model_project, run.model_name, run.base_model)
