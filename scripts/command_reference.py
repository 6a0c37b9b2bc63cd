"""The page on the command line, made from the help texts. The documentation site has it; the repository does not."""

from collections.abc import Iterator
from typing import Any

import typer

from learnloop_service.app.cli.main import app

_INTRODUCTION = """# Command line

Generated from the help texts: `learnloop --help` and `learnloop COMMAND --help` print the same.
"""


def reference() -> str:
    """Return every command with its arguments and options, as Markdown."""
    return "\n".join([_INTRODUCTION, *_described(typer.main.get_command(app), "learnloop")])


def _described(command: Any, name: str) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    commands = getattr(command, "commands", {})
    yield f"## `{name}{' COMMAND' if commands else ''}`\n"
    yield f"{_text(command.help)}\n"
    records = (parameter.get_help_record(context) for parameter in command.params)
    if rows := [f"| `{_cell(spelled)}` | {_cell(help_text)} |" for spelled, help_text in filter(None, records)]:
        yield "\n".join(["| option | |", "| --- | --- |", *rows, ""])
    for subcommand in sorted(commands):
        yield from _described(commands[subcommand], f"{name} {subcommand}")


def _text(help_text: str) -> str:
    """Return the help text without line breaks inside a paragraph and escaped brackets, which are for the terminal."""
    paragraphs = help_text.replace("\\[", "[").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")
