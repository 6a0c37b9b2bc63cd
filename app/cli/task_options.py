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
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
    ]
    added = [_option(name, text, about) for name, text, about in _fields({parameter.name for parameter in parameters})]
    merged = [
        parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*parameters[:-2], *added, *parameters[-2:])
    ]
    setattr(command, "__signature__", signature.replace(parameters=merged))  # noqa: B010
    command.__annotations__ |= {parameter.name: parameter.annotation for parameter in added}
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


def _fields(reserved: set[str]) -> Iterator[tuple[str, str, Mapping[str, Json]]]:
    """Yield the name of each field, what the environments say of it, and its schema in the first of them."""
    fields: dict[str, list[tuple[str, Mapping[str, Json]]]] = {}
    for environment in registry.names():
        for name, about in (registry.task_schema(environment) or {"properties": {}})["properties"].items():
            if name.isidentifier() and name not in reserved:
                fields.setdefault(name, []).append((environment, about))
    for name, uses in fields.items():
        text = " ".join(f"{environment}: {_sentence(name, about)}" for environment, about in uses)
        yield name, text, uses[0][1]


def _sentence(name: str, about: Mapping[str, Json]) -> str:
    return f"{str(about.get('description') or about.get('title', name)).rstrip('.')}."


def _option(name: str, text: str, about: Mapping[str, Json]) -> inspect.Parameter:
    is_list = "array" in about.get("type", ())
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar="YYYY-MM-DD" if about.get("format") == "date" else None,
        help=f"{text} Repeatable." if is_list else text,
    )
    kind: Any = list[str] | None if is_list else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
