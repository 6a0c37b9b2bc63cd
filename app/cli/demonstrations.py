"""`learnloop demonstrations`: conversations that runs imitate before reinforcement learning."""

from typing import Annotated

import typer
from rich.table import Table

from app.cli.client import Service, ServiceRefused
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.runs import RunId
from app.cli.terminal import print_deleted, print_json, results
from environment.json_type import Json

app = typer.Typer(
    no_args_is_help=True, help="Store, list and delete demonstrations: conversations that runs learn from first."
)

Name = Annotated[str, typer.Argument(help="Name of the demonstrations: letters, digits, '-' and '_'.")]
_UPLOAD_TIMEOUT_S = 600.0


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
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Store conversations under a name, for `warm_start` of a run. The same ones again make no new version."""
    with Service(url, timeout_s=_UPLOAD_TIMEOUT_S) as service:
        try:
            stored = service.store_demonstrations(name, file.read())
        except ServiceRefused as refused:
            raise ServiceRefused(refused.status, f"{file.name} was not stored: {refused}") from refused
    if as_json:
        print_json(stored)
        return
    _print_stored(stored, url)


@app.command("from-run")
def from_run(
    name: Name,
    run_id: RunId,
    min_reward: Annotated[float, typer.Option(help="Only rollouts with at least this reward.")],
    per_scenario: Annotated[
        int, typer.Option(min=1, max=1_000, help="Maximum number of rollouts of the same scenario, best first.")
    ] = 1,
    rejudging: Annotated[
        str | None, typer.Option(metavar="ID", help="Take the rewards of this rejudging instead of the run's own.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Store the best rollouts of a run that has ended (rejection sampling). Held-out scenarios are never used."""
    wanted = {"name": name, "min_reward": min_reward, "per_scenario": per_scenario}
    wanted |= {} if rejudging is None else {"rejudging": rejudging}
    with Service(url, timeout_s=_UPLOAD_TIMEOUT_S) as service:
        stored = service.store_best_rollouts(run_id, wanted)
    if as_json:
        print_json(stored)
        return
    results.print(
        f"kept {stored['kept']} of {stored['rollouts']} rollouts, of {stored['scenarios']} scenarios; "
        f"{stored['unfit']} cannot be trained on",
        soft_wrap=True,
    )
    _print_stored(stored, url)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Option(help="Only versions of this name. \\[default: all]")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the versions of stored demonstrations, newest first."""
    with Service(url) as service:
        found = service.versions("demonstrations", name)
    if as_json:
        print_json(found)
        return
    if not found:
        results.print("No demonstrations are stored. Store some: learnloop demonstrations upload NAME FILE")
        return
    table = Table("name", "version", "conversations", "stored", "sha256", box=None, pad_edge=False)
    for each in found:
        row = (each["name"], str(each["version"]), str(each["count"]), each["created_at"][:10], each["sha256"][:12])
        table.add_row(*row)
    results.print(table)


@app.command()
def delete(
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version. \\[default: all]")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete stored demonstrations, and the other names of the same content. What a run still needs is not deleted."""
    with Service(url) as service:
        print_deleted(service.delete_versions("demonstrations", name, version), as_json)


def _print_stored(stored: Json, url: str) -> None:
    results.print(f"stored {stored['count']} demonstrations as {stored['name']}@{stored['version']}")
    results.print(f"learn from them: learnloop train --demonstrations {stored['name']} --url {url}", soft_wrap=True)
