"""The option `--output`: the result of a command goes to a file."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.terminal import results

_NAME, _JSON = "output", "as_json"
_JSON_ENDINGS = (".json", ".jsonl")
"""Endings of files that get JSON: `.jsonl` suits commands that print a line of it for each of many events."""
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        dir_okay=False,
        help="Write the result to this file, as JSON if its name ends in .json.",
    ),
]
OLD_NAME = {"token_normalize_func": lambda name: _NAME if name == "out" else name}
"""Settings of a command whose `--output` was `--out`, which still works."""


def prints_json(command: Callable[..., Any]) -> bool:
    """Return whether a command has the option `--json`."""
    return _JSON in inspect.signature(command).parameters


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also has `--output`, if it has none of its own."""
    signature = inspect.signature(command)
    if _NAME in signature.parameters:
        return command

    @wraps(command)
    def writing(*, output: Path | None = None, **arguments: Any) -> None:
        if output is None:
            return command(**arguments)
        if _JSON in arguments:
            arguments[_JSON] = arguments[_JSON] or output.suffix.lower() in _JSON_ENDINGS
        with results.into(output):
            command(**arguments)

    option = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Output)
    setattr(writing, "__signature__", signature.replace(parameters=[*signature.parameters.values(), option]))  # noqa: B010
    writing.__annotations__ = {**command.__annotations__, _NAME: _Output}
    return writing
