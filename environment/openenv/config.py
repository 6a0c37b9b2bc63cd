"""Settings of the environment `openenv`: its server, the episodes, and their rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, get_args

from environment.base import Json, Scenario
from environment.config_checks import names_of_secrets, number, strings, text
from environment.given_scenarios import check_keys, read_scenarios, split_of

MAX_SCENARIOS = 10_000
Return = Literal["sum", "last"]
"""How an episode's reward is computed: the sum of the rewards of its steps, or the last one."""
_SETTINGS = (
    *("allow_tools", "headers", "instructions", "max_result_characters", "reward", "scenarios"),
    *("step_timeout_s", "success_from", "url"),
)
_SCENARIO_KEYS = ("id", "reset", "split", "task")
_MAX_STEP_TIMEOUT_S = 600.0
_MAX_RESULT_CHARACTERS = 200_000
_INSTRUCTIONS = files("environment.openenv").joinpath("prompts/system.txt").read_text(encoding="utf-8").strip()


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
    check_keys(dict(config), "the config of openenv", _SETTINGS)
    given = dict(config)
    if "url" in given:
        given["url"] = _address(given["url"])
    if "headers" in given:
        given["headers"] = names_of_secrets(given["headers"], "headers")
    if "scenarios" in given:
        given["scenarios"] = read_scenarios(given["scenarios"], "episodes", MAX_SCENARIOS, "openenv:split", _scenario)
    if "instructions" in given:
        given["instructions"] = text(given["instructions"], "instructions")
    if "allow_tools" in given:
        given["allow_tools"] = strings(given["allow_tools"], "allow_tools")
    if given.get("reward", "sum") not in get_args(Return):
        raise ValueError(f"reward must be one of {', '.join(get_args(Return))}, not {given['reward']!r}")
    if "success_from" in given:
        given["success_from"] = number(given["success_from"], "success_from", 1e9, -1e9)
    if "step_timeout_s" in given:
        given["step_timeout_s"] = number(given["step_timeout_s"], "step_timeout_s", _MAX_STEP_TIMEOUT_S)
    if "max_result_characters" in given:
        most = number(given["max_result_characters"], "max_result_characters", _MAX_RESULT_CHARACTERS)
        given["max_result_characters"] = int(most)
    return OpenEnvConfig(**given)


def _address(value: Json) -> str:
    """Return the URL without a trailing slash and with a lower-case scheme, because the WebSocket's scheme is derived
    from it."""
    scheme, colon, rest = text(value, "url").rstrip("/").partition(":")
    return f"{scheme.lower()}{colon}{rest}"


def asked(value: Mapping[str, Json]) -> Scenario:
    """Return the scenario of a user's own episode. Raises ValueError."""
    check_keys(dict(value), "a task", ("reset", "task"))
    return Scenario(id="ask", split="test", task=_task(dict(value), "the task"))


def _scenario(row: Json, place: int) -> Scenario:
    where = f"scenario number {place}"
    check_keys(row, where, _SCENARIO_KEYS)
    id = text(row.get("id", f"given.{place}"), f"{where}: id")
    return Scenario(id, split_of(row, where), _task(row, where))


def _task(row: dict[str, Json], where: str) -> dict[str, Json]:
    """Return `reset`, the arguments of the server's reset, and optionally `task`, a text that the model is shown."""
    reset = row.get("reset", {})
    if not isinstance(reset, dict):
        raise ValueError(f'{where}: reset must be an object of arguments for the server, such as {{"seed": 1}}')
    return {"reset": reset} | ({"task": text(row["task"], f"{where}: task")} if "task" in row else {})
