"""The command `learnloop`. Its commands mirror the API, and import what they need only when they run."""

import signal
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import (
    agent,
    ask,
    bases,
    check,
    data,
    demonstrations,
    deployments,
    engine,
    evaluations,
    feedback,
    inbox,
    judges,
    keys,
    migrate,
    models,
    new,
    openapi,
    runs,
    serve,
    train,
    trajectories,
    webhooks,
    worker,
)
from app.cli.demo.command import demo
from app.cli.pipeline.command import pipeline
from app.cli.preflight.command import preflight
from app.cli.terminal import Failure, print_failure, results


class Commands(TyperGroup):
    """Turns a command's Failure into one line on stderr and exit code 1."""

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


app.command()(demo)
app.command()(serve.serve)
app.command()(worker.worker)
app.command()(migrate.migrate)
app.command(context_settings=engine.FORWARDED)(engine.engine)
app.command()(preflight)
app.command()(train.train)
app.command()(pipeline)
app.command()(ask.ask)
app.command("eval")(evaluations.evaluate)
app.command()(openapi.openapi)
app.add_typer(runs.app, name="runs")
app.add_typer(agent.app, name="agent")
app.add_typer(bases.app, name="bases")
app.add_typer(check.app, name="check")
app.add_typer(data.app, name="data")
app.add_typer(demonstrations.app, name="demonstrations")
app.add_typer(deployments.app, name="deployments")
app.add_typer(evaluations.app, name="evaluations")
app.add_typer(feedback.app, name="feedback")
app.add_typer(inbox.app, name="inbox")
app.add_typer(judges.app, name="judges")
app.add_typer(keys.app, name="keys")
app.add_typer(models.app, name="models")
app.add_typer(new.app, name="new")
app.add_typer(trajectories.app, name="trajectories")
app.add_typer(webhooks.app, name="webhooks")


def main() -> None:
    """Run the command line. SIGTERM ends a command in the same orderly way as Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app(prog_name="learnloop")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
