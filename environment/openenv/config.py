"""Settings of the environment `openenv`: its server, the episodes, and their rewards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Literal, get_args

from learnloop_service.environment.base import Json, Scenario
from learnloop_service.environment.config_checks import (
    names_of_secrets,
    number,
    result_characters,
    settings,
    strings,
    text,
)
from learnloop_service.environment.given_scenarios import check_keys, read_scenarios, split_of

MAX_SCENARIOS = 10_000
Return = Literal["sum", "last"]
"""How an episode's reward is computed: the sum of the rewards of its steps, or the last one."""
_SCENARIO_KEYS = ("id", "reset", "split", "task")
_MAX_STEP_TIMEOUT_S = 600.0
_INSTRUCTIONS = (
    files("learnloop_service.environment.openenv").joinpath("prompts/system.txt").read_text(encoding="utf-8").strip()
)


@dataclass(frozen=True, slots=True)
class OpenEnvConfig:
    """A run's settings of the environment."""

    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names of secrets by header."""
    scenarios: Sequence[Scenario] | None = None
    """None: episodes that differ by their seed."""
    instructions: str = _INSTRUCTIONS
    allow_tools: Sequence[str] | None = None
    """Tools to use, by the server's names; None: all."""
    reward: Return = "sum"
    success_from: float = 0.5
    step_timeout_s: float = 60.0
    max_result_characters: int = 8_000


def parse(config: Mapping[str, Json]) -> OpenEnvConfig:
    """Parse the config. Raises ValueError with a message for the user."""
    checks: dict[str, Callable[[Json, str], object]] = {
        "url": _address,
        "headers": names_of_secrets,
        "scenarios": lambda value, _: read_scenarios(value, "episodes", MAX_SCENARIOS, "openenv:split", _scenario),
        "instructions": text,
        "allow_tools": strings,
        "reward": _return,
        "success_from": partial(number, most=1e9, least=-1e9),
        "step_timeout_s": partial(number, most=_MAX_STEP_TIMEOUT_S),
        "max_result_characters": result_characters,
    }
    return OpenEnvConfig(**settings(config, "openenv", checks))


def _return(value: Json, where: str) -> Json:
    if value not in get_args(Return):
        raise ValueError(f"{where} must be one of {', '.join(get_args(Return))}, not {value!r}")
    return value


def _address(value: Json, where: str) -> str:
    """Return the URL without a trailing slash and with a lower-case scheme, because the WebSocket's scheme is derived
    from it."""
    scheme, colon, rest = text(value, where).rstrip("/").partition(":")
    return f"{scheme.lower()}{colon}{rest}"


def scenario_of_task(value: Mapping[str, Json]) -> Scenario:
    """Return the scenario of a user's own episode. Raises ValueError."""
    check_keys(dict(value), "a task", ("reset", "task"))
    return Scenario(id="ask", split="test", task=_task(dict(value), "the task"))


def _scenario(row: Json, number: int) -> Scenario:
    where = f"scenario number {number}"
    check_keys(row, where, _SCENARIO_KEYS)
    id = text(row.get("id", f"given.{number}"), f"{where}: id")
    return Scenario(id, split_of(row, where), _task(row, where))


def _task(row: dict[str, Json], where: str) -> dict[str, Json]:
    """Return `reset`, the arguments of the server's reset, and optionally `task`, a text that the model is shown."""
    reset = row.get("reset", {})
    if not isinstance(reset, dict):
        raise ValueError(f'{where}: reset must be an object of arguments for the server, such as {{"seed": 1}}')
    return {"reset": reset} | ({"task": text(row["task"], f"{where}: task")} if "task" in row else {})
