"""`learnloop demonstrations`: conversations that runs imitate before reinforcement learning."""

from typing import Annotated

import typer

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, PATIENCE_S, Service, ServiceAt, ServiceRefused
from learnloop_service.app.cli.evaluations import EvaluationId
from learnloop_service.app.cli.options import AsJson, OfName, OnlyVersion
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import print_deleted, print_result, print_versions
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(
    no_args_is_help=True, help="Store, list and delete demonstrations: conversations that runs learn from first."
)

MinReward = Annotated[float, typer.Option(help="Only rollouts with at least this reward.")]
PerScenario = Annotated[
    int, typer.Option(min=1, max=1_000, help="Maximum number of rollouts of the same scenario, best first.")
]
Name = Annotated[str, typer.Argument(help="Name of the demonstrations: letters, digits, '-' and '_'.")]


@app.command()
def upload(
    name: Name,
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(
            metavar="FILE",
            help="JSON Lines in OpenAI's form for fine-tuning: a conversation a line, with `messages` and, where it "
            "calls any, its `tools`. - reads standard input.",
        ),
    ],
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store conversations under a name, for `warm_start` of a run. The same ones again make no new version."""
    service.within(PATIENCE_S)
    try:
        stored = service.call("POST", "/demonstrations", params={"name": name}, content=file.read())
    except ServiceRefused as refused:
        raise ServiceRefused(refused.status, f"{file.name} was not stored: {refused}") from refused
    print_result(stored, as_json, *_stored(stored, service.url))


@app.command("from-run")
def from_run(
    name: Name,
    run_id: RunId,
    min_reward: MinReward,
    per_scenario: PerScenario = 1,
    rejudging: Annotated[
        str | None, typer.Option(metavar="ID", help="Take the rewards of this rejudging instead of the run's own.")
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store the best rollouts of a run that has ended (rejection sampling). Held-out scenarios are never used."""
    selection = {"name": name, "min_reward": min_reward, "per_scenario": per_scenario}
    selection |= {} if rejudging is None else {"rejudging": rejudging}
    _store_best(service, f"/runs/{segment(run_id)}", selection, as_json)


@app.command("from-evaluation")
def from_evaluation(
    name: Name,
    evaluation_id: EvaluationId,
    min_reward: MinReward,
    per_scenario: PerScenario = 1,
    model: Annotated[str | None, typer.Option(help="Label of one of its models. \\[default: all of them]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store the best rollouts of an evaluation of training scenarios (`learnloop eval --split train`)."""
    selection = {"name": name, "min_reward": min_reward, "per_scenario": per_scenario}
    selection |= {} if model is None else {"model": model}
    _store_best(service, f"/evaluations/{segment(evaluation_id)}", selection, as_json)


def _store_best(service: Service, source: str, selection: Json, as_json: bool) -> None:
    stored = service.within(PATIENCE_S).call("POST", f"{source}/demonstrations", json=selection)
    summary = (
        f"kept {stored['kept']} of {counted(stored['rollouts'], 'rollout')}, of "
        f"{counted(stored['scenarios'], 'scenario')}; {stored['unfit']} cannot be trained on"
    )
    print_result(stored, as_json, summary, *_stored(stored, service.url))


@app.command("list")
def list_(
    name: OfName = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List the versions of stored demonstrations, newest first."""
    nothing = "No demonstrations are stored. Store some: learnloop demonstrations upload NAME FILE"
    print_versions(service.versions("demonstrations", name), as_json, nothing, "conversations")


@app.command()
def delete(
    name: Name,
    version: OnlyVersion = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete stored demonstrations, and the other names of the same content. What a run still needs is not deleted."""
    print_deleted(service.delete_versions("demonstrations", name, version), as_json)


def _stored(stored: Json, url: str) -> tuple[str, str]:
    return (
        f"stored {counted(stored['count'], 'demonstration')} as {stored['name']}@{stored['version']}",
        f"learn from them: learnloop train --demonstrations {stored['name']} --url {url}",
    )
