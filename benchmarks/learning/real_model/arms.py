"""What is compared: the learn-loop of each arm. What is not given is left to the service's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from learnloop_service.environment.json_type import Json

PROMPTED, WARM_START, GRPO, GRPO_ONLY = "prompted", "warm_start", "grpo", "grpo_only"
ARMS = (PROMPTED, WARM_START, GRPO, GRPO_ONLY)
"""The base model as it is, after demonstrations, after demonstrations and GRPO, and after GRPO alone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all runs. None leaves a field to the service."""

    inbox: str | None = None
    """Prepared mail, or None for the environment's invented inboxes."""
    demonstrations: int = 480
    epochs: int | None = None
    warm_learning_rate: float | None = None
    iterations: int | None = None
    groups: int | None = None
    rollouts: int | None = None
    learning_rate: float | None = None
    max_completion_tokens: int | None = None
    concurrency: int | None = None
    evaluate: bool = True
    """Whether the run itself evaluates, as it does by default. Without, its seconds are those of training."""
    questions: int = 152
    """Number of test questions at the end."""


CHECK: Mapping[str, Any] = {
    "demonstrations": 4, "epochs": 1, "iterations": 1, "groups": 2, "rollouts": 4, "evaluate": False, "questions": 3,
}  # fmt: skip
"""The settings of `--plan check`, which only shows on a CPU that everything works."""


def with_given(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """Return the settings with those replaced that are not None."""
    return replace(settings, **{name: value for name, value in options.items() if value is not None})


def environment(settings: Settings) -> Json:
    """Return the environment of all runs and evaluations."""
    return {"name": "email_search", "config": {} if settings.inbox is None else {"inbox": settings.inbox}}


def request(arm: str, base_model: str, settings: Settings, seed: int, staleness: int = 0) -> dict[str, Json]:
    """Build the learn-loop request of an arm other than `prompted`."""
    fields = {
        "iterations": 0 if arm == WARM_START else settings.iterations,
        "groups_per_iteration": settings.groups,
        "rollouts_per_group": settings.rollouts,
        "learning_rate": settings.learning_rate,
        "max_completion_tokens": settings.max_completion_tokens,
        "concurrency": settings.concurrency,
        "evaluation": None if settings.evaluate else {"scenarios": 0, "test_scenarios": 0},
        "pipeline": {"max_staleness": staleness} if staleness else None,
    }
    return {
        "environment": environment(settings),
        "model": {"base_model": base_model},
        "seed": seed,
        "checkpoints": {"keep_last": 100},
        "warm_start": None if arm == GRPO_ONLY else _warm_start(settings),  # without the field a new model gets one
        **{name: value for name, value in fields.items() if value is not None},
    }


def _warm_start(settings: Settings) -> dict[str, Json]:
    options = {"epochs": settings.epochs, "learning_rate": settings.warm_learning_rate}
    return {
        "demonstrations": {"oracle": settings.demonstrations},
        **{name: value for name, value in options.items() if value is not None},
    }
