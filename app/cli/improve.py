"""`learnloop improve`: make an agent better by the cheapest step that is good enough."""

import re
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from learnloop.operations import segment
from learnloop_service.app.cli import prompts as stored_prompts
from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.material_files import read_proposal, write_material
from learnloop_service.app.cli.options import AsJson, DataDir, StartedBy, config_file, own_url, setting
from learnloop_service.app.cli.run_request import overlay, parse_settings, read_run_file
from learnloop_service.app.cli.service_process import service_at
from learnloop_service.app.cli.terminal import (
    confirm,
    folded,
    print_json,
    print_list,
    print_result,
    progress,
    say,
    whole,
)
from learnloop_service.app.cli.watching import polled
from learnloop_service.environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Make an agent better by the cheapest step that is good enough.")


ImprovementId = Annotated[str, typer.Argument(metavar="ID", help="Id of the improvement, or `latest`.")]
_Target = Annotated[float | None, typer.Option(min=0, max=1, help="Success at which to stop, such as 0.9.")]
_MaxUsd = Annotated[float | None, typer.Option(help="Limit in US dollars for all of it.")]
_MaxMinutes = Annotated[float | None, typer.Option(help="Limit in minutes of work for all of it.")]
_ENDED = ("reached", "best_so_far", "budget", "nothing_helps", "cancelled", "failed")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@app.command()
def start(
    file: Annotated[
        Path | None,
        typer.Argument(parser=config_file, metavar="FILE", help="YAML file with the fields of POST /improvements."),
    ] = None,
    target: _Target = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(exists=True, metavar="FILE|DIR", help="Prompt to try, as for `learnloop prompts`. Repeatable."),
    ] = None,
    wait_minutes: Annotated[
        float | None, typer.Option(help="Minutes to wait for prompts of people or programs before anything is trained.")
    ] = None,
    max_usd: _MaxUsd = None,
    max_minutes: _MaxMinutes = None,
    settings: Annotated[
        list[str] | None, setting("Any other field, such as environment.config.inbox=mine; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would try, show and take.")] = False,
    url: Annotated[str | None, own_url("improvement")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start an improvement, and watch it. Ctrl-C stops watching; the improvement continues in the service."""
    flags: dict[str, Json] = {
        "target": target,
        "wait_minutes": wait_minutes,
        "dry_run": dry_run or None,
        "budget.max_usd": max_usd,
        "budget.max_minutes": max_minutes,
    }
    request = overlay(read_run_file(file) if file else {}, {**parse_settings(settings or ()), **flags})
    with service_at(url, data_dir) as service:
        if prompts:
            request["prompts"] = [*request.get("prompts", []), *(_stored(service, path) for path in prompts)]
        accepted = service.call("POST", "/improvements", json=request)
        if dry_run:
            print_result(accepted, as_json, *([] if as_json else _plan(accepted)))
            return
        ended = watch(service, accepted["id"], quiet=as_json)
    _finish(ended, as_json)


@app.command("list")
def list_(started_by: StartedBy = None, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """List improvements, newest first."""
    improvements = service.newest("/improvements", 50, started_by=started_by)
    columns = (whole("ID"), *map(folded, ("STATUS", "ENVIRONMENT", "TARGET", "CANDIDATES", "STARTED")))
    print_list(improvements, as_json, "No improvements. Start one: learnloop improve start", columns, _row)


@app.command()
def show(id: ImprovementId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show an improvement: what was tried, what it reached, and what it cost."""
    improvement = service.call("GET", _path(service, id))
    print_result(improvement, as_json, *([] if as_json else chain(*_text(improvement))))


@app.command("watch")
def watch_(id: ImprovementId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Watch an improvement until it ends."""
    _finish(watch(service, _id(service, id), quiet=as_json), as_json)


def _add_command(action: str, help: str) -> None:
    @app.command(action, help=help)
    def act(id: ImprovementId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
        improvement = service.call("POST", f"{_path(service, id)}/{action}")
        print_result(improvement, as_json, _doing(improvement))


_add_command("pause", "Pause an improvement: nothing more is started. An evaluation in progress continues to its end.")
_add_command("resume", "Resume a paused improvement, or let one that waits for prompts wait no longer.")
_add_command("cancel", "Cancel an improvement, and the evaluation or run in progress.")


@app.command("continue")
def continue_(
    id: ImprovementId,
    target: _Target = None,
    max_usd: _MaxUsd = None,
    max_minutes: _MaxMinutes = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Go on with an improvement that has ended, with another target or budget, and watch it."""
    body = overlay({}, {"target": target, "budget.max_usd": max_usd, "budget.max_minutes": max_minutes})
    accepted = service.call("POST", f"{_path(service, id)}/continue", json=body)
    _finish(watch(service, accepted["id"], quiet=as_json), as_json)


@app.command()
def material(
    id: ImprovementId,
    out: Annotated[Path | None, typer.Option(help="New folder for the files. \\[default: print JSON]")] = None,
    service: ServiceAt = HERE,
) -> None:
    """Get what is needed to propose a prompt: the texts, and how training tasks fail. With --out, as files to edit."""
    id = _id(service, id)
    document = service.call("GET", f"{_path(service, id)}/material")
    if out is None:
        print_json(document)
        return
    write_material(document, id, out)
    say(f"{out / 'README.md'} says what to do. Then: learnloop improve propose {id} {out}")


@app.command()
def propose(
    id: ImprovementId,
    path: Annotated[
        Path, typer.Argument(exists=True, metavar="FILE|DIR", help="The edited material, or any prompt as a file.")
    ],
    why: Annotated[str, typer.Option(help="Why it should help, in a sentence.")] = "",
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Propose a prompt to try."""
    body = {"parts": read_proposal(path), "why": why}
    proposal = service.call("POST", f"{_path(service, id)}/candidates", json=body)
    number, prompt = proposal["number"], proposal["prompt"]
    print_result(
        proposal,
        as_json,
        f"{prompt['name']}@{prompt['version']} is candidate {number}.",
        *(
            ["It quotes training tasks, so a person should read it before it is promoted."]
            if proposal["quotes"]
            else ()
        ),
    )


@app.command()
def delete(
    id: ImprovementId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete an improvement that has ended. Its evaluations, runs and prompts stay."""
    if not yes:
        confirm(f"Delete the improvement {id}?", f"{id} would be deleted")
    gone = service.call("DELETE", _path(service, id))
    print_result(gone, as_json, f"improvement {gone['id']} is deleted")


def watch(service: Service, id: str, *, quiet: bool = False) -> Json:
    """Print what an improvement does, a line for each candidate, until it ends. Return it as it is then."""
    printed = set[str]()
    with progress.status(f"improvement {id}") as display:

        def show_new(improvement: Json) -> None:
            for line in () if quiet else _text(improvement)[0]:
                if line not in printed:
                    printed.add(line)
                    say(line)
            display.update(_doing(improvement))

        return polled(lambda: service.call("GET", _path(service, id)), show_new, _ENDED, display.update)


def _text(improvement: Json) -> tuple[list[str], list[str]]:
    """Return the lines about what is decided, and those about what came of it, or what it does now."""
    # Imported late: the models of the API take a while.
    from learnloop_service.app.improvements.lines import decided, ended
    from learnloop_service.app.schemas.improvements import ImprovementOut

    shown = ImprovementOut.model_validate(improvement)
    if shown.sentence is None:
        return decided(shown), [_doing(improvement)]
    return decided(shown), [*ended(shown), *_next(improvement)]


def _plan(plan: Json) -> list[str]:
    from learnloop_service.app.improvements.lines import planned
    from learnloop_service.app.schemas.improvements import ImprovementPlan

    return planned(ImprovementPlan.model_validate(plan))


def _next(improvement: Json) -> list[str]:
    """Return the command by which users get the champion; nothing if nothing was accepted."""
    champion = improvement["tried"][improvement["champion"]]
    if not champion["number"] or (improvement["reason"] or "").startswith(("Promoted", "Release")):
        return []
    prompt = champion["prompt"]
    named = f" --prompt {prompt['name']}@{prompt['version']}" if prompt and prompt["name"] else ""
    if champion["listed"]:
        return [f"Next: learnloop ask --model {champion['model']}{named}"]
    model, at, step = champion["model"].rpartition("@")
    if not at:  # a base: a model is made of it
        model, step = f"{improvement['project']}/improved-{improvement['id'][-6:]}", f"0 --base {champion['model']}"
    return [f"Next: learnloop models promote {model} --step {step} --as live{named}"]


def _finish(improvement: Json, as_json: bool) -> None:
    """Print how it ended. Exits with 1 if it failed."""
    print_result(improvement, as_json, *([] if as_json else _text(improvement)[1]))
    raise typer.Exit(1 if improvement["status"] == "failed" else 0)


def _doing(improvement: Json) -> str:
    busy = [row for row in improvement["tried"] if row["state"] in ("screening", "measuring", "training")]
    what = f"candidate {busy[0]['number']} ({busy[0]['rung']}) is {busy[0]['state']}" if busy else "between two moves"
    if not busy and improvement["job"]:
        what = "the test tasks" if improvement["pilot"] and len(improvement["tried"]) > 1 else "the pilot"
    return f"improvement {improvement['id']} is {improvement['status']}: {improvement['reason'] or what}"


def _stored(service: Service, path: Path) -> str:
    """Store the prompt in a file under the file's name, and return its version."""
    name = _NOT_IN_NAMES.sub("-", path.resolve().stem).strip("-_")[:63] or "prompt"
    version = stored_prompts.store(service, name, path)
    return f"{version['name']}@{version['version']}"


def _id(service: Service, id: str) -> str:
    if id != "latest":
        return id
    latest = service.call("GET", "/improvements", params={"limit": 1})["items"]
    return str(latest[0]["id"]) if latest else id


def _path(service: Service, id: str) -> str:
    return f"/improvements/{segment(_id(service, id))}"


def _row(improvement: Json) -> tuple[str, ...]:
    target = "-" if improvement["target"] is None else f"{improvement['target']:.0%}"
    same = improvement["id"], improvement["status"], improvement["environment"], target
    return *same, str(improvement["candidates"]), improvement["created_at"][:16].replace("T", " ")
