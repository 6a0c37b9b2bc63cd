"""Settings of the environment `mcp`: its server, the tools to use, and the tasks."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

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

MAX_TASKS = 10_000
_TASK_KEYS = ("id", "task", "answer", "split")
_MAX_TOOL_TIMEOUT_S = 600.0
_INSTRUCTIONS = (
    files("learnloop_service.environment.mcp").joinpath("prompts/system.txt").read_text(encoding="utf-8").strip()
)


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server started as a process; `env` names secrets by environment variable."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name under which the operator allows it."""
        return shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server at a URL (streamable HTTP); `headers` names secrets by header."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name under which the operator allows it."""
        return self.url


Server = StdioServer | HttpServer


@dataclass(frozen=True, slots=True)
class McpConfig:
    """A run's settings of the environment."""

    server: Server | None = None
    scenarios: Sequence[Scenario] | None = None
    instructions: str = _INSTRUCTIONS
    allow_tools: Sequence[str] | None = None
    """Tools to use, by the server's names; None: all."""
    tool_timeout_s: float = 30.0
    max_result_characters: int = 8_000


def parse(
    config: Mapping[str, Json],
    name: str = "mcp",
    tasks: str = "tasks",
    most: int = MAX_TASKS,
    read: Callable[[Json, int], Scenario] | None = None,
) -> McpConfig:
    """Parse the config of the environment with that name, whose scenarios `read` reads. Raises ValueError with a
    message for the user."""
    checks: dict[str, Callable[[Json, str], object]] = {
        "server": lambda value, _: server(value),
        "scenarios": lambda value, _: read_scenarios(value, tasks, most, f"{name}:split", read or _scenario),
        "instructions": text,
        "allow_tools": strings,
        "tool_timeout_s": partial(number, most=_MAX_TOOL_TIMEOUT_S),
        "max_result_characters": result_characters,
    }
    return McpConfig(**settings(config, name, checks))


def server(value: Json) -> Server:
    """Parse the server of a request. Raises ValueError."""
    if not isinstance(value, dict) or ("command" in value) == ("url" in value):
        raise ValueError('server must be {"command": [...]} or {"url": ...}')
    if "command" in value:
        check_keys(value, "server", ("command", "env"))
        return StdioServer(
            strings(value["command"], "server.command"), names_of_secrets(value.get("env", {}), "server.env")
        )
    check_keys(value, "server", ("url", "headers"))
    return HttpServer(text(value["url"], "server.url"), names_of_secrets(value.get("headers", {}), "server.headers"))


def scenario_of_task(value: Mapping[str, Json]) -> Scenario:
    """Return the scenario of a user's own task. Raises ValueError."""
    check_keys(dict(value), "a task", ("task",))
    return Scenario(id="ask", split="test", task={"task": text(value.get("task"), "task")})


def _scenario(row: Json, number: int) -> Scenario:
    where = f"scenario number {number}"
    check_keys(row, where, _TASK_KEYS)
    id = text(row.get("id", f"given.{number}"), f"{where}: id")
    reference = {} if row.get("answer") is None else {"answer": text(row["answer"], f"{where}: answer")}
    return Scenario(id, split_of(row, where), {"task": text(row.get("task"), f"{where}: task")}, reference)
