"""Options for the fields of a task, which the environments declare."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.run_request import parse_settings
from learnloop_service.environment import registry
from learnloop_service.environment.json_type import Json


def takes_task_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with `**fields` an option for each field of a task that an installed environment has, unless it
    has a parameter of that name. The options come before its last two, which all commands have."""
    signature = inspect.signature(command)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    added = [_option(name, said, about) for name, said, about in _fields({each.name for each in own})]
    merged = [each.replace(kind=each.KEYWORD_ONLY) for each in (*own[:-2], *added, *own[-2:])]
    setattr(command, "__signature__", signature.replace(parameters=merged))  # noqa: B010
    command.__annotations__ |= {each.name: each.annotation for each in added}
    return command


def task_of(fields: Mapping[str, str | list[str] | None]) -> dict[str, Json]:
    """Return the task from the values of such options. Those of no text are read like other settings, as YAML."""
    task: dict[str, Json] = {}
    types = {name: about.get("type", "string") for name, _, about in _fields(set())}
    for name, value in fields.items():
        if isinstance(value, str) and "string" not in types[name]:
            task |= parse_settings([f"{name}={value}"])
        elif value:
            task[name] = value
    return task


def _fields(taken: set[str]) -> Iterator[tuple[str, str, Mapping[str, Json]]]:
    """Yield the name of each field, what the environments say of it, and its schema in the first of them."""
    found: dict[str, list[tuple[str, Mapping[str, Json]]]] = {}
    for environment in registry.names():
        for name, about in (registry.task_schema(environment) or {"properties": {}})["properties"].items():
            if name.isidentifier() and name not in taken:
                found.setdefault(name, []).append((environment, about))
    for name, uses in found.items():
        said = " ".join(f"{environment}: {_said(name, about)}" for environment, about in uses)
        yield name, said, uses[0][1]


def _said(name: str, about: Mapping[str, Json]) -> str:
    return f"{str(about.get('description') or about.get('title', name)).rstrip('.')}."


def _option(name: str, said: str, about: Mapping[str, Json]) -> inspect.Parameter:
    is_list = "array" in about.get("type", ())
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar="YYYY-MM-DD" if about.get("format") == "date" else None,
        help=f"{said} Repeatable." if is_list else said,
    )
    kind: Any = list[str] | None if is_list else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
