"""`learnloop check`: examines a plug-in before training on it."""

import asyncio
import json
from dataclasses import asdict
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


@app.command()
def backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A registered backend.")],
    as_json: AsJson = False,
) -> None:
    """List a backend's settings, and look at what a run on it needs.

    Exits with 1 if it cannot be used here.
    """
    from learnloop_service.app.backends import refusal
    from learnloop_service.training.backends.registry import listed_settings, names, preflight
    from learnloop_service.training.backends.traits import Check, State

    refused = refusal(name)
    if name not in names():
        raise Failure(str(refused))
    settings = listed_settings(name)
    usable = Check("backend", State.OK, f"{name} can be used here")
    checks = [*preflight(name)] if refused is None else []
    findings = [usable if refused is None else Check("backend", State.FAILED, refused), *checks]
    if as_json:
        print_json({"settings": list(map(asdict, settings)), "checks": list(map(asdict, findings))})
    else:
        rows = (
            (plain(setting.variable), "set" if setting.is_set else "", plain(setting.description))
            for setting in settings
        )
        results.print(table(["SETTING", "", "WHAT FOR"], rows), "")
        for check in findings:
            print_finding(check.state, check.name, check.found, check.remedy)
    raise typer.Exit(1 if any(check.state is State.FAILED for check in findings) else 0)


def _object(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}", param_hint="--config") from error
    if not isinstance(config, dict):
        raise typer.BadParameter("it must be a JSON object", param_hint="--config")
    return config


def _print(report: "Report") -> None:
    if report.agents:
        results.print(_table(report), "")
    for finding in report.findings:
        print_finding(finding.state, finding.name, finding.said)
    if report.seconds_per_rollout is not None:
        say(f"{report.seconds_per_rollout * 1000:.2f} ms for a rollout of the random agent, without a model")


def _table(report: "Report") -> Table:
    rows = (
        (plain(figures.agent), str(figures.rollouts), figure(figures.mean_reward, 3), percent(figures.success))
        for figures in report.agents
    )
    return table(["AGENT", *map(number, ("ROLLOUTS", "REWARD", "SOLVED"))], rows)
