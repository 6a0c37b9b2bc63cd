"""`learnloop deployments`: promoted names with their addresses, health and requests."""

from typing import Annotated

import typer
from rich.table import Table

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, EndRelease, Url
from app.cli.terminal import Failure, plain, print_json, progress, results
from environment.json_type import Json
from training.protocol.model_name import ModelName

app = typer.Typer(
    no_args_is_help=True,
    help="List promoted names with their addresses, check that they answer, show what they were asked, delete them.",
)

Name = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]


class Deployments:
    """The part of the API for promoted names."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def listed(self) -> list[Json]:
        """Return all promoted names with their addresses."""
        return [self._addressed(each) for each in self._service.call("GET", "/promotions")["items"]]

    def described(self, name: str) -> Json:
        """Return a promoted name with its address, its history, and whether it answers."""
        path = _path(name)
        history = self._service.call("GET", path)["items"]
        return {
            **self._addressed(history[0]),
            "health": self._service.call("POST", f"{path}/check"),
            "history": history,
        }

    def requests(self, name: str, limit: int) -> list[Json]:
        """Return the newest requests, newest first."""
        params = {"limit": limit}
        items: list[Json] = self._service.call("GET", f"{_path(name)}/requests", params=params)["items"]
        return items

    def delete(self, name: str, *, end_release: bool) -> Json:
        """Delete the name."""
        return self._service.call("DELETE", _path(name), params={"end_release": end_release})

    def _addressed(self, promotion: Json) -> Json:
        return {**promotion, "address": f"{self._service.url}/v1"}


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the promoted names, each with its checkpoint, and since when and on what evidence it has it."""
    with Service(url) as service:
        found = Deployments(service).listed()
    if as_json:
        print_json(found)
        return
    if not found:
        results.print(
            "Nothing is deployed. Promote a checkpoint: learnloop models promote PROJECT/NAME --step N --as NAME"
        )
        return
    results.print(_table(found))


@app.command()
def describe(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a promoted name, and check that its address answers with its checkpoint. Exits with 1 if it does not."""
    with Service(url) as service:
        found = Deployments(service).described(name)
    print_json(found) if as_json else _print(found)
    raise typer.Exit(0 if found["health"]["healthy"] else 1)


@app.command()
def logs(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of requests.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what /ask and /invoke were asked of a promoted name, oldest first. Requests to /v1 are not stored."""
    with Service(url) as service:
        found = Deployments(service).requests(name, limit)
    if as_json:
        print_json(found)
        return
    for each in reversed(found):
        results.print(plain(_request_line(each)), soft_wrap=True)
    if not found:
        results.print("no requests")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    end_release: EndRelease = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take a promoted name away: requests that use it fail from then on. The checkpoint stays."""
    with Service(url) as service:
        deployments = Deployments(service)
        if not yes:
            current = service.call("GET", _path(name))["items"][0]
            if not progress.is_terminal:
                raise Failure(f"{name} is {_checkpoint(current)}; confirm with --yes")
            typer.confirm(f"Delete {name}, which is {_checkpoint(current)}?", abort=True, err=True)
        gone = deployments.delete(name, end_release=end_release)
    print_json(gone) if as_json else results.print(
        f"{name} is deleted; {_checkpoint(gone)} is still there", soft_wrap=True
    )


def _path(name: str) -> str:
    try:
        model = ModelName.parse(name)
    except ValueError as error:
        raise Failure(str(error)) from error
    if model.step is not None:
        raise Failure(f"{name!r} names a checkpoint; give PROJECT/NAME")
    return f"/promotions/{model}"


def _checkpoint(promotion: Json) -> str:
    return f"{promotion['model']}@{promotion['step']}"


def _evidence(promotion: Json) -> str:
    evidence = promotion["evidence"]
    if evidence is None:
        return "-"
    if "release_id" in evidence:
        return f"release {evidence['release_id']}, by {evidence['by']}"
    difference = evidence["difference"]
    return f"{difference['mean']:+.1%} over {evidence['pairs']} scenarios" if difference else "won a trial"


def _release(release: Json) -> str:
    """Return a live release in a line."""
    share, stage = f"{100 * release['share']:.3g}%", f"stage {release['stage'] + 1} of {release['stages']}"
    return f"{release['release_id']} is {release['state']}: {release['candidate']} has a share of {share}, {stage}"


def _table(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "CHECKPOINT", "SINCE", "EVIDENCE"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "SINCE")
    for each in found:
        table.add_row(each["name"], _checkpoint(each), each["created_at"][:16].replace("T", " "), _evidence(each))
    return table


def _print(found: Json) -> None:
    health = found["health"]
    table = Table.grid(padding=(0, 2))
    table.add_row("name", found["name"])
    table.add_row("checkpoint", f"{_checkpoint(found)} on {found['backend']}")
    table.add_row("since", f"{found['created_at'][:19]}, promoted by {found['actor']}")
    evidence = found["evidence"]
    if evidence is not None:
        trial = f", evaluation {evidence['evaluation_id']}" if "evaluation_id" in evidence else ""
        table.add_row("evidence", f"{_evidence(found)}{trial}")
    if found["release"] is not None:
        table.add_row("release", _release(found["release"]))
    table.add_row("address", f"{found['address']} (any OpenAI client; model {found['name']})")
    state = f"answers, in {health['seconds']:.2f} s" if health["healthy"] else f"does not answer: {health['reason']}"
    table.add_row("health", plain(state))
    before = [_checkpoint(each) for each in found["history"][1:]]
    if before:
        table.add_row("before", ", ".join(before))
    results.print(table)


def _request_line(trajectory: Json) -> str:
    task = trajectory["scenario"].get("task", {})
    asked = task.get("question") or task.get("prospect") or "a task"
    outcome = trajectory["outcome"]
    said = trajectory["error"] or outcome.get("answer") or outcome.get("subject") or "(no answer)"
    tokens = trajectory["prompt_tokens"] + trajectory["completion_tokens"]
    return (
        f"{trajectory['started_at'][:19]}  {trajectory['id']}  {trajectory['model']}  "
        f"{trajectory['seconds']:.2f} s  {tokens} tokens  {asked} -> {said}"
    )
