"""`learnloop check`: examines a plug-in before training on it."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from learnloop_service.app.cli.charts import figure, percent
from learnloop_service.app.cli.options import AsJson, DataDir
from learnloop_service.app.cli.terminal import Failure, number, plain, print_finding, print_json, results, say, table

if TYPE_CHECKING:
    from learnloop_service.training.environment_check.report import Report

app = typer.Typer(no_args_is_help=True)


@app.callback()
def check() -> None:
    """Examine a plug-in before training on it."""


@app.command()
def environment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A registered environment.")],
    config: Annotated[str, typer.Option(metavar="JSON", help="Its config, as in environment.config.")] = "{}",
    scenarios: Annotated[int, typer.Option(min=2, max=10_000, help="How many training scenarios are played.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the scenarios and of the agents.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Play an environment without a model, by agents that solve it, act at random, do nothing, or cheat.

    Exits with 1 if something is broken: leaked answers, held-out scenarios that are trained on, outcomes that vary,
    rewards that cheating earns.
    """
    from learnloop_service.app.cli.serve import settings_with
    from learnloop_service.app.runs.environment_access import EnvironmentAccess
    from learnloop_service.environment.registry import UnknownEnvironment
    from learnloop_service.training.environment_check.check import check

    settings = settings_with(data_dir=data_dir)
    access = EnvironmentAccess(settings)
    examined = check(name, _object(config), settings.data_dir, scenarios=scenarios, seed=seed, access=access)
    try:
        report = asyncio.run(examined)
    except UnknownEnvironment as error:
        raise Failure(str(error)) from error
    except ValueError as error:
        raise Failure(f"the environment {name!r} cannot be used so: {error}") from error
    print_json(report.as_json()) if as_json else _print(report)
    raise typer.Exit(1 if report.broken else 0)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}", param_hint="--config") from error
    if not isinstance(found, dict):
        raise typer.BadParameter("it must be a JSON object", param_hint="--config")
    return found


def _print(report: "Report") -> None:
    if report.agents:
        results.print(_table(report), "")
    for found in report.findings:
        print_finding(found.state, found.name, found.said)
    if report.seconds_per_rollout is not None:
        say(f"{report.seconds_per_rollout * 1000:.2f} ms for a rollout of the random agent, without a model")


def _table(report: "Report") -> Table:
    rows = (
        (plain(each.agent), str(each.rollouts), figure(each.mean_reward, 3), percent(each.success))
        for each in report.agents
    )
    return table(["AGENT", *map(number, ("ROLLOUTS", "REWARD", "SOLVED"))], rows)
