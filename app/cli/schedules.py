"""`learnloop schedules`: runs that start at fixed times, from what users asked."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_request import BadRunFile, overlay, read_run_file
from learnloop_service.app.cli.terminal import (
    Failure,
    confirm,
    failing_on,
    folded,
    print_json,
    print_list,
    print_result,
    results,
    say,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(
    no_args_is_help=True, help="Start runs at fixed times, from what users asked and consented to train on."
)

Named = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the schedule.")]
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@app.command()
def create(
    name: Annotated[str, typer.Option(help="Name of the schedule, unique within its project.")],
    cron: Annotated[str, typer.Option(help='When to start runs, in UTC, such as "0 2 * * *".')],
    file: Annotated[Path, typer.Option(help="YAML file with the fields of a run, with source.sessions.")],
    then: Annotated[
        Literal["trial", "release", "nothing"], typer.Option(help="What follows a completed run.")
    ] = "trial",
    promoted_name: Annotated[
        str | None,
        typer.Option(help="Promoted name that runs start from. \\[default: source.sessions.model of the file]"),
    ] = None,
    least_new_tasks: Annotated[
        int | None, typer.Option(help="New tasks below which no run is started. \\[default: 100]")
    ] = None,
    window_days: Annotated[
        float | None, typer.Option(help="Days before the due time to draw from. \\[default: since the last draw]")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Project. \\[default: that of the API key]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Create a schedule, and show when it is due."""
    with failing_on(BadRunFile):
        run = read_run_file(file)
    options = {"promoted_name": promoted_name, "least_new_tasks": least_new_tasks, "window_days": window_days}
    body = {"name": name, "cron": cron, "run": run, "then": then}
    body = overlay(body, {**options, "project": project})
    _print(service.call("POST", "/schedules", json=body), as_json=as_json)


@app.command("list")
def list_(service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """List the schedules, newest first."""
    schedules = service.call("GET", "/schedules", params={"limit": 200})["items"]
    columns = map(folded, ("NAME", "PROJECT", "CRON", "NEXT", "THEN", "LAST"))
    print_list(schedules, as_json, "no schedules", columns, _row)


@app.command()
def show(
    name: Named,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of due times.")] = 10,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Show a schedule, its latest due times, and how many wrong promotions are to be expected by now."""
    schedule = _find(service, name)
    runs = service.call("GET", f"/schedules/{schedule['id']}/runs", params={"limit": limit})["items"]
    if as_json:
        print_json({**schedule, "runs": runs})
        return
    _print(schedule, as_json=False)
    for due_time in runs:
        say(f"{_time(due_time['due_at'])}  {_outcome(due_time)}")


@app.command()
def pause(name: Named, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Pause a schedule: nothing is started until it is resumed."""
    _print(_ask_of(service, name, "pause"), as_json=as_json)


@app.command()
def resume(name: Named, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Resume a paused schedule. Times that were missed are not made up."""
    _print(_ask_of(service, name, "resume"), as_json=as_json)


@app.command()
def run(name: Named, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Make a schedule due now. Exits with 1 if no run is started."""
    due_time = _ask_of(service, name, "run")
    print_result(due_time, as_json, _outcome(due_time))
    raise typer.Exit(0 if due_time["run_id"] else 1)


@app.command()
def delete(
    name: Named,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete a schedule. Its runs stay."""
    schedule = _find(service, name)
    if not yes:
        label = f"{schedule['name']} of {schedule['project']}"
        confirm(f"Delete the schedule {label}?", f"{label} would be deleted")
    gone = service.call("DELETE", f"/schedules/{schedule['id']}")
    print_result(gone, as_json, f"schedule {gone['name']} is deleted")


def _ask_of(service: Service, name: str, verb: str) -> Json:
    return service.call("POST", f"/schedules/{_find(service, name)['id']}/{verb}")


def _find(service: Service, name: str) -> Json:
    if _ID.fullmatch(name):
        return service.call("GET", f"/schedules/{name}")
    schedules = service.call("GET", "/schedules", params={"name": name})["items"]
    if not schedules:
        raise Failure(f"there is no schedule {name!r}; learnloop schedules list shows all")
    if len(schedules) > 1:
        ids = ", ".join(f"{schedule['id']} ({schedule['project']})" for schedule in schedules)
        raise Failure(f"several projects have a schedule {name!r}; give its id: {ids}")
    return schedules[0]


def _row(schedule: Json) -> tuple[str, ...]:
    then = "paused" if schedule["paused"] else _time(schedule["next_times"][0])
    last = "-" if schedule["last"] is None else _outcome(schedule["last"])
    return schedule["name"], schedule["project"], schedule["cron"], then, schedule["then"], last


def _print(schedule: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    table = Table.grid(padding=(0, 2))
    table.add_row("schedule", f"{schedule['name']} of {schedule['project']} ({schedule['id']})")
    table.add_row("cron", f"{schedule['cron']} (UTC)")
    table.add_row("next", "paused" if schedule["paused"] else ", ".join(map(_time, schedule["next_times"])))
    table.add_row("starts from", f"the checkpoint of {schedule['promoted_name']}")
    table.add_row("then", schedule["then"])
    since = "the last draw" if schedule["window_days"] is None else f"{schedule['window_days']:g} days before"
    table.add_row("tasks", f"since {since}; at least {schedule['least_new_tasks']} new ones")
    expected = schedule["expected_wrong_promotions"]
    table.add_row("trials", f"{schedule['trials']}; at most {expected:.2f} wrong promotions are to be expected by now")
    results.print(table)


def _outcome(due: Json) -> str:
    """Return what came of a due time, in a line."""
    if due["state"] == "skipped":
        return f"skipped ({due['reason']}): {due['detail']}"
    parts = [f"run {due['run_id'] or 'deleted'}"]
    if due["run_status"]:
        parts[0] += f" {due['run_status']}"
    drawn = f"{counted(due['tasks'], 'task')} of {counted(due['users'], 'user')}"
    parts.append(f"{drawn} from {due['started_from'] or 'the base model'}")
    if due["evaluation_id"]:
        parts.append(f"trial {due['decision'] or due['evaluation_status']}")
    if due["release_id"]:
        parts.append(f"release {due['release_id']}")
    if due["reason"]:
        parts.append(f"nothing followed ({due['reason']}): {due['detail']}")
    return "; ".join(parts)


def _time(time: str) -> str:
    return time[:16].replace("T", " ")
