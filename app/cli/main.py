"""The command `learnloop`. Its subcommands mirror the API, and import what they need only when they run.

A package adds one with an entry point in the group `learnloop.commands` that names a function with Typer's annotations,
or a Typer with several commands. The name `data.fetch` adds `fetch` to the commands of `learnloop data`. Its
`rich_help_panel` names its panel in `learnloop --help`.
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
from learnloop_service.app.cli.output_files import OLD_NAME, prints_json, with_output
from learnloop_service.app.cli.terminal import Failure, print_failure, results
from learnloop_service.environment import plugins

GROUP = "learnloop.commands"
COMMANDS = {
    "Start": {
        "demo": "learnloop_service.app.cli.demo.command:demo",
        "new": "learnloop_service.app.cli.new:app",
        "data": "learnloop_service.app.cli.data:app",
        "inbox": "learnloop_service.app.cli.inbox:app",
        "bases": "learnloop_service.app.cli.bases:app",
        "preflight": "learnloop_service.app.cli.preflight.command:preflight",
        "train": "learnloop_service.app.cli.train:train",
    },
    "Look": {
        "runs": "learnloop_service.app.cli.runs:app",
        "report": "learnloop_service.app.cli.report:app",
        "trajectories": "learnloop_service.app.cli.trajectories:app",
        "eval": "learnloop_service.app.cli.evaluations:evaluate",
        "evaluations": "learnloop_service.app.cli.evaluations:app",
        "failures": "learnloop_service.app.cli.failures:failures",
    },
    "Use": {
        "ask": "learnloop_service.app.cli.ask:ask",
        "agent": "learnloop_service.app.cli.agent:agent",
        "models": "learnloop_service.app.cli.models:app",
        "promotions": "learnloop_service.app.cli.promotions:app",
        "releases": "learnloop_service.app.cli.releases:app",
        "budget": "learnloop_service.app.cli.budget:app",
        "mcp": "learnloop_service.app.cli.operator_tools.command:mcp",
    },
    "Improve": {
        "improve": "learnloop_service.app.cli.improve:app",
        "feedback": "learnloop_service.app.cli.feedback:app",
        "demonstrations": "learnloop_service.app.cli.demonstrations:app",
        "prompts": "learnloop_service.app.cli.prompts:app",
        "judges": "learnloop_service.app.cli.judges:app",
        "check": "learnloop_service.app.cli.check:app",
        "schedules": "learnloop_service.app.cli.schedules:app",
    },
    "Operate": {
        "serve": "learnloop_service.app.cli.serve:serve",
        "worker": "learnloop_service.app.cli.worker:worker",
        "engine": "learnloop_service.app.cli.engine:engine",
        "migrate": "learnloop_service.app.cli.migrate:migrate",
        "keys": "learnloop_service.app.cli.keys:app",
        "users": "learnloop_service.app.cli.users:app",
        "webhooks": "learnloop_service.app.cli.webhooks:app",
        "openapi": "learnloop_service.app.cli.openapi:openapi",
    },
}
"""Location of each command, by its panel in `learnloop --help`: a function, or a Typer with several commands. Only the
command that runs is imported, so that a service that was killed is back quickly."""
_OLD_NAMES = {"deployments": "promotions"}
"""Commands by names that they had before: they still work, and no help lists them."""
_PANEL_OF = {name: panel for panel, named in COMMANDS.items() for name in named}
_OTHERS = "From packages"
"""Panel of the commands of packages that name none."""
_OWN_PARSER = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
SETTINGS: dict[str, dict[str, Any]] = {"agent": _OWN_PARSER, "engine": _OWN_PARSER, "eval": OLD_NAME}
"""Settings of commands. Those that need less than the command line have a parser of their own, to which their flags,
including `--help`, are left; `eval` takes the old name of an option."""


class _LazyCommands(Mapping[str, Any]):
    """The commands of a group, each built on its first lookup: its own, and those of packages under other names.
    Looking for the latter takes longer than importing one of ours."""

    def __init__(self, commands: Mapping[str, Any], group: str = "") -> None:
        """`commands` has our own, built or as their locations. `group` is empty for the root."""
        self._commands = commands
        self._group = group
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        name = name if self._group else _OLD_NAMES.get(name, name)
        if name not in self._loaded:
            built = self._commands.get(name)
            if isinstance(built, str):
                built = _built(name, _at(built), SETTINGS.get(name))
            command = self._of_a_package(name) if built is None else built
            if not self._group:
                self._prepare(name, command)
            self._loaded[name] = command
        return self._loaded[name]

    def _prepare(self, name: str, command: Any) -> None:
        """Give a command of the root its panel, and a group the commands that packages add to it."""
        command.rich_help_panel = _PANEL_OF.get(name) or command.rich_help_panel or _OTHERS
        if isinstance(command, TyperGroup):
            command.commands = cast(Any, _LazyCommands(command.commands, name))

    def _of_a_package(self, name: str) -> Any:
        """Return the command of a package. If it cannot be loaded or is not installed, return one that says so, so that
        the others still work. Raises KeyError for an unknown one."""
        point = self._of_packages().get(name)
        try:
            if point is not None:
                return _built(name, plugins.load("command", point))
            entry = f"{self._group}.{name}" if self._group else name
            if not (where := plugins.where_to_find(GROUP, entry)):
                raise KeyError(name)
            why = f"There is no command `learnloop {entry.replace('.', ' ')}`. {where}"
        except plugins.PluginFault as fault:
            why = str(fault)

        def unusable() -> None:
            raise Failure(why)

        unusable.__doc__ = why
        return _built(name, unusable, _OWN_PARSER)

    def _of_packages(self) -> dict[str, EntryPoint]:
        points = {tuple(name.rpartition(".")[::2]): point for name, point in plugins.registered(GROUP).items()}
        return {name: point for (group, name), point in points.items() if group == self._group}

    def __iter__(self) -> Iterator[str]:
        return iter({**self._commands, **self._of_packages()})

    def __len__(self) -> int:
        return len({**self._commands, **self._of_packages()})


def _built(name: str, command: Any, settings: dict[str, Any] | None = None) -> Any:
    """Return click's form of a function or a Typer."""
    alone = typer.Typer(rich_markup_mode="rich")
    for registered in command.registered_commands if isinstance(command, typer.Typer) else ():
        registered.callback = _with_output(registered.callback)
    panel = getattr(command, "rich_help_panel", None)
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name, rich_help_panel=panel)
    else:
        alone.command(name, context_settings=settings, rich_help_panel=panel)(_with_output(command))
    return typer.main.get_group(alone).commands[name]


def _with_output(command: Any) -> Any:
    """Return a function with `--output`, if it has `--json`."""
    return with_output(command) if prints_json(command) else command


def _at(location: str) -> Any:
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


class Commands(TyperGroup):
    """The root group, which turns a command's Failure into one line on stderr and exit code 1."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        locations = {name: at for named in COMMANDS.values() for name, at in named.items()}
        self.commands = cast(Any, _LazyCommands(locations))

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


def _print_version(is_requested: bool) -> None:
    if is_requested:
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
