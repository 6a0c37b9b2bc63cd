"""The command `learnloop`. Its subcommands mirror the API, and import what they need only when they run.

A package adds one with an entry point in the group `learnloop.commands` that names a function with Typer's annotations,
or a Typer with several commands.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, version
from types import FrameType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from learnloop.http_settings import spare_loopback
from learnloop_service.app.cli.terminal import Failure, print_failure, results
from learnloop_service.environment import plugins

GROUP = "learnloop.commands"
COMMANDS = {
    "demo": "learnloop_service.app.cli.demo.command:demo",
    "serve": "learnloop_service.app.cli.serve:serve",
    "worker": "learnloop_service.app.cli.worker:worker",
    "migrate": "learnloop_service.app.cli.migrate:migrate",
    "engine": "learnloop_service.app.cli.engine:engine",
    "preflight": "learnloop_service.app.cli.preflight.command:preflight",
    "train": "learnloop_service.app.cli.train:train",
    "ask": "learnloop_service.app.cli.ask:ask",
    "openapi": "learnloop_service.app.cli.openapi:openapi",
    "runs": "learnloop_service.app.cli.runs:app",
    "agent": "learnloop_service.app.cli.agent:agent",
    "bases": "learnloop_service.app.cli.bases:app",
    "check": "learnloop_service.app.cli.check:app",
    "data": "learnloop_service.app.cli.data:app",
    "demonstrations": "learnloop_service.app.cli.demonstrations:app",
    "deployments": "learnloop_service.app.cli.deployments:app",
    "eval": "learnloop_service.app.cli.evaluations:evaluate",
    "evaluations": "learnloop_service.app.cli.evaluations:app",
    "feedback": "learnloop_service.app.cli.feedback:app",
    "inbox": "learnloop_service.app.cli.inbox:app",
    "judges": "learnloop_service.app.cli.judges:app",
    "keys": "learnloop_service.app.cli.keys:app",
    "models": "learnloop_service.app.cli.models:app",
    "new": "learnloop_service.app.cli.new:app",
    "releases": "learnloop_service.app.cli.releases:app",
    "report": "learnloop_service.app.cli.report:app",
    "schedules": "learnloop_service.app.cli.schedules:app",
    "trajectories": "learnloop_service.app.cli.trajectories:app",
    "users": "learnloop_service.app.cli.users:app",
    "webhooks": "learnloop_service.app.cli.webhooks:app",
}
"""Location of each command: a function, or a Typer with several commands. Only the command that runs is imported, so
that a service that was killed is back quickly."""
_OWN_PARSER = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
SETTINGS = {"agent": _OWN_PARSER, "engine": _OWN_PARSER}
"""Settings of commands. Those that need less than the command line have a parser of their own, to which their flags,
including `--help`, are left."""


class _LazyCommands(Mapping[str, Any]):
    """The commands, each imported on its first lookup: our own, and those of packages under other names. Looking for
    the latter takes longer than importing one of ours."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            command = _own(name) if name in COMMANDS else _of_a_package(plugins.registered(GROUP)[name])
            alone = typer.Typer(rich_markup_mode="rich")
            if isinstance(command, typer.Typer):
                alone.add_typer(command, name=name)
            else:
                alone.command(name, context_settings=SETTINGS.get(name))(command)
            self._found[name] = typer.main.get_group(alone).commands[name]
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**COMMANDS, **plugins.registered(GROUP)})

    def __len__(self) -> int:
        return len({**COMMANDS, **plugins.registered(GROUP)})


def _own(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(import_module(module), attribute)


def _of_a_package(point: EntryPoint) -> Any:
    """Return the command of a package, or one that says why it cannot be loaded: the others still work."""
    try:
        return plugins.load("command", point)
    except plugins.PluginFault as fault:
        why = str(fault)

        def unusable() -> None:
            raise Failure(why)

        unusable.__doc__ = why
        return unusable


class Commands(TyperGroup):
    """The root group, which turns a command's Failure into one line on stderr and exit code 1."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = cast(Any, _LazyCommands())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            print_failure(str(failure))
            raise typer.Exit(1) from failure


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        results.print(f"learnloop {version('learnloop')}")
        raise typer.Exit


@app.callback()
def learnloop(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train LLM agents by reinforcement learning."""


def main() -> None:
    """Run the command line. SIGTERM ends a command as cleanly as Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    spare_loopback(os.environ)
    app(prog_name="learnloop")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
