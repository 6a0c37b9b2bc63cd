"""`learnloop promotions`: promoted names with their addresses, health and requests."""

from typing import Annotated

import typer
from rich.table import Column, Table

from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import AsJson, EndRelease, named_model, served
from learnloop_service.app.cli.terminal import confirm, folded, plain, print_json, print_list, print_result, results
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed

app = typer.Typer(
    no_args_is_help=True,
    help="List promoted names with their addresses, check that they answer, show what they were asked, delete them.",
)

Name = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]


def _addressed(promotion: Json, service: Service) -> Json:
    return {**promotion, "address": f"{service.url}/v1"}


@app.command("list")
def list_(service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """List the promoted names, each with its checkpoint, and since when and on what evidence it has it."""
    promotions = [_addressed(promotion, service) for promotion in service.call("GET", "/promotions")["items"]]
    nothing = "No name is promoted. Promote a checkpoint: learnloop models promote PROJECT/NAME --step N --as NAME"
    since = Column("SINCE", overflow="fold", no_wrap=True)
    columns = [folded("NAME"), folded("CHECKPOINT"), since, folded("EVIDENCE")]
    print_list(promotions, as_json, nothing, columns, _row)


@app.command()
def describe(name: Name, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show a promoted name, and check that its address answers with its checkpoint. Exits with 1 if it does not."""
    history = service.call("GET", _path(name))["items"]
    health = service.call("POST", f"{_path(name)}/check")
    document = {**_addressed(history[0], service), "health": health, "history": history}
    print_json(document) if as_json else _print(document)
    raise typer.Exit(0 if document["health"]["healthy"] else 1)


@app.command()
def explore(
    name: Name,
    share: Annotated[float, typer.Option(min=0, max=0.5, help="Share of the consented sessions; 0 for none.")],
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Sample a share of the consented sessions of a name at temperature 1, whatever their clients ask, so that a model
    can learn from their answers. `describe` shows what that costs users."""
    promotion = service.call("POST", f"{_path(name)}/explore", json={"share": share})
    print_result(promotion, as_json, f"{name}: {_explores(promotion)}")


@app.command()
def logs(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of requests.")] = 20,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Show what /ask and /invoke were asked of a promoted name, oldest first. Requests to /v1 are not stored."""
    requests = service.call("GET", f"{_path(name)}/requests", params={"limit": limit})["items"]
    print_result(requests, as_json, *(map(_request_line, reversed(requests)) if requests else ("no requests",)))


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    end_release: EndRelease = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Take a promoted name away: requests that use it fail from then on. The checkpoint stays."""
    if not yes:
        current = _checkpoint(service.call("GET", _path(name))["items"][0])
        confirm(f"Delete {name}, which is {current}?", f"{name} is {current}")
    gone = service.call("DELETE", _path(name), params={"end_release": end_release})
    print_result(gone, as_json, f"{name} is deleted; {_checkpoint(gone)} is still there")


def _path(name: str) -> str:
    return f"/promotions/{named_model(name)}"


def _checkpoint(promotion: Json) -> str:
    return served(f"{promotion['model']}@{promotion['step']}", promotion["prompt"])


def _evidence(promotion: Json) -> str:
    evidence = promotion["evidence"]
    if evidence is None:
        return "-"
    if "release_id" in evidence:
        return f"release {evidence['release_id']}, by {evidence['by']}"
    difference = evidence["difference"]
    if not difference:
        return "won a trial"
    return f"{signed(100 * difference['mean'], 1)} points over {counted(evidence['pairs'], 'scenario')}"


def _release(release: Json) -> str:
    """Return a live release in a line."""
    candidate = served(release["candidate"], release["candidate_prompt"])
    share, stage = f"{100 * release['share']:.3g}%", f"stage {release['stage'] + 1} of {release['stages']}"
    return f"{release['release_id']} is {release['state']}: {candidate} has a share of {share}, {stage}"


def _explores(promotion: Json) -> str:
    exploring = promotion["explore"]
    return f"{100 * exploring['share']:.3g}% of the consented sessions explore, set by {exploring['actor']}"


def _row(promotion: Json) -> tuple[str, ...]:
    since = promotion["created_at"][:16].replace("T", " ")
    return promotion["name"], _checkpoint(promotion), since, _evidence(promotion)


def _print(promotion: Json) -> None:
    health = promotion["health"]
    table = Table.grid(padding=(0, 2))
    table.add_row("name", promotion["name"])
    table.add_row("checkpoint", f"{_checkpoint(promotion)} on {promotion['backend']}")
    table.add_row("since", f"{promotion['created_at'][:19]}, promoted by {promotion['actor']}")
    if (missed_at := promotion["prompt_missed_at"]) is not None:
        table.add_row("prompt", f"a request came without it at {missed_at[:19]}: see the header Learnloop-Prompt")
    evidence = promotion["evidence"]
    if evidence is not None:
        trial = f", evaluation {evidence['evaluation_id']}" if "evaluation_id" in evidence else ""
        table.add_row("evidence", f"{_evidence(promotion)}{trial}")
    if promotion["release"] is not None:
        table.add_row("release", _release(promotion["release"]))
    if promotion["explore"] is not None:
        table.add_row("explores", "\n".join([_explores(promotion), *promotion["explore"]["notes"]]))
    table.add_row("address", f"{promotion['address']} (any OpenAI client; model {promotion['name']})")
    state = f"answers, in {health['seconds']:.2f} s" if health["healthy"] else f"does not answer: {health['reason']}"
    table.add_row("health", plain(state))
    before = [_checkpoint(earlier) for earlier in promotion["history"][1:]]
    if before:
        table.add_row("before", ", ".join(before))
    results.print(table)


def _request_line(trajectory: Json) -> str:
    task = trajectory["scenario"].get("task", {})
    question = task.get("question") or task.get("prospect") or "a task"
    outcome = trajectory["outcome"]
    answer = trajectory["error"] or outcome.get("answer") or outcome.get("subject") or "(no answer)"
    tokens = trajectory["prompt_tokens"] + trajectory["completion_tokens"]
    return (
        f"{trajectory['started_at'][:19]}  {trajectory['id']}  {trajectory['model']}  "
        f"{trajectory['seconds']:.2f} s  {tokens} tokens  {question} -> {answer}"
    )
