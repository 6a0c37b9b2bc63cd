"""`learnloop runs`: list, inspect and control runs."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import percent
from learnloop_service.app.cli.client import HERE, PATIENCE_S, ServiceAt
from learnloop_service.app.cli.compare import compare
from learnloop_service.app.cli.diagnose import diagnose
from learnloop_service.app.cli.event_lines import event_line
from learnloop_service.app.cli.options import AsJson, StartedBy, setting
from learnloop_service.app.cli.output_files import OLD_NAME
from learnloop_service.app.cli.plot_files import check_ending, write_plot
from learnloop_service.app.cli.rejudge import rejudge
from learnloop_service.app.cli.run_edit import edit
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.run_report import print_run, verdict_text
from learnloop_service.app.cli.run_request import BadRunFile, overlay, parse_settings
from learnloop_service.app.cli.terminal import (
    failing_on,
    json_text,
    number,
    plain,
    print_json,
    print_result,
    progress,
    results,
    say,
    whole,
)
from learnloop_service.app.cli.watching import ENDED, RunDisplay, follow
from learnloop_service.app.reports.format import dollars
from learnloop_service.environment.wording import counted

app = typer.Typer(no_args_is_help=True, help="List, inspect and control runs.")


@app.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    starred: Annotated[bool, typer.Option("--starred", help="Only starred runs.")] = False,
    started_by: StartedBy = None,
    sort: Annotated[
        str | None, typer.Option(help="What to sort by, highest first: gain, success, tokens, time and others.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of runs.")] = 20,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first or by a figure, with whether each one learned."""
    runs = service.runs(limit, status=status, tag=tag, starred=starred or None, sort=sort, started_by=started_by)
    if as_json:
        print_json(runs)
        return
    _print_list(runs) if runs else results.print("no runs")


@app.command()
def show(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show a run: its progress and its figures."""
    run = service.run(run_id)
    print_json(run) if as_json else print_run(run)


@app.command()
def watch(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Follow a run until it ends: curves, phases, events and why it waits. Ctrl-C stops watching, not the run."""
    with RunDisplay(progress) as display:
        run = follow(service, run_id, display.show, note=display.note, away=display.away)
    print_json(run) if as_json else print_run(run)
    raise typer.Exit(0 if run["status"] == "completed" else 1)


@app.command(context_settings=OLD_NAME)
def plot(
    run_id: RunId,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The file: .svg or .png.")],
    service: ServiceAt = HERE,
) -> None:
    """Draw a run: rewards with their spread, and held-out success with its intervals, by iteration."""
    check_ending(output)
    run = service.run(run_id)
    from learnloop_service.app.plots.run import run_svg

    write_plot(run_svg(run), output)
    say(f"wrote {output}")


@app.command()
def cancel(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Cancel a run and wait until it has stopped."""
    service.cancel(run_id)
    _print_moved(follow(service, run_id, lambda _: None), as_json)


@app.command()
def pause(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Pause a run and wait until it has stopped. Finished work is kept."""
    service.ask_of(run_id, "pause")
    _print_moved(follow(service, run_id, lambda _: None, until={*ENDED, "paused"}), as_json)


@app.command()
def resume(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Resume a paused run where it stopped."""
    _print_moved(service.ask_of(run_id, "resume"), as_json)


@app.command()
def retry(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Retry a failed run. It continues after the last work that was saved."""
    _print_moved(service.ask_of(run_id, "retry"), as_json)


@app.command()
def fork(
    run_id: RunId,
    checkpoint: Annotated[
        int | None, typer.Option(min=0, help="Step of the checkpoint to start from. \\[default: the best]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new model.")] = None,
    settings: Annotated[
        list[str] | None, setting("A field of the request to change; repeatable.", "FIELD=VALUE")
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Start a new run from a checkpoint of this one, optionally with other settings."""
    with failing_on(BadRunFile):
        changed = overlay({}, parse_settings(settings or []))
        request = overlay(changed, {"checkpoint": checkpoint, "model.name": name})
    _print_moved(service.ask_of(run_id, "fork", request), as_json)


@app.command()
def delete(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Delete a run that has ended: its records, its files, and its model unless another run needs it."""
    print_result(service.delete_run(run_id), as_json, f"run {run_id} is deleted")


@app.command()
def events(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events until the run has ended.")] = False,
    service: ServiceAt = HERE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per event.")] = False,
) -> None:
    """Print the events of a run, one per line."""
    for event in service.follow_events(run_id) if follow else service.events(run_id):
        say(json_text(event) if as_json else event_line(event))


@app.command()
def verify(run_id: RunId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Recompute the figures of a run and of its rejudgings from what is stored. The exit code is 1 if any differs."""
    verification = service.within(PATIENCE_S).call("GET", f"/runs/{segment(run_id)}/verify")
    print_json(verification) if as_json else _print_verification(verification)
    raise typer.Exit(0 if verification["ok"] else 1)


app.command()(compare)
app.command()(diagnose)
app.command()(edit)
app.command()(rejudge)


def _print_moved(run: Any, as_json: bool) -> None:
    print_result(run, as_json, f"run {run['run_id']} is {run['status']}")


def _print_verification(verification: Any) -> None:
    for rollout in verification["lost"]:
        where = f"iteration {rollout['iteration']}: rollout {rollout['trajectory_id']}"
        say(f"{where} was lost ({rollout['failure']}): {rollout['error']}")
    compared = (
        f"{counted(verification['figures'], 'figure')} of {verification['trajectories']:,} trajectories in "
        f"{counted(verification['iterations'], 'iteration')}"
    )
    if verification["rejudgings"]:
        compared += f" and {counted(verification['rejudgings'], 'rejudging')}"
    if verification["ok"]:
        say(f"all figures agree with the stored trajectories: {compared}")
        return
    say(f"{verification['difference_count']} of {compared} differ")
    for difference in verification["differences"]:
        where = f"iteration {difference['iteration']}: {difference['what']}" + (
            f" of {difference['trajectory_id']}" if difference["trajectory_id"] else ""
        )
        say(f"  {where}: stored {difference['stored']!r}, recomputed {difference['recomputed']!r}")


def _print_list(runs: list[Any]) -> None:
    """Print each run as a line of a table, with its verdict below."""
    id, status = (max(len(run[name]) for run in runs) for name in ("run_id", "status"))
    is_priced = any(run.get("cost_usd") is not None for run in runs)
    figures = map(number, ("DONE", "HELD OUT", *(["COST"] if is_priced else [])))
    columns = (whole("RUN", id), whole("STATUS", status), whole("ENVIRONMENT"), *figures)
    table = Table(*columns, whole("CREATED"), box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for run in runs:
        work = run["progress"]
        table.add_row(
            plain(run["run_id"], "dim"),
            run["status"],
            run["environment"],
            f"{work['iterations_done']}/{work['iterations_total']}",
            _held_out(run["verdict"]["on"]),
            *([dollars(run["cost_usd"])] if is_priced else []),
            f"{datetime.fromisoformat(run['created_at']).astimezone():%d %b %H:%M}",
        )
    with results.capture() as captured:
        results.print(table)
    title, *rows = captured.get().splitlines()
    results.print(Text.from_ansi(title))
    for row, run in zip(rows, runs, strict=True):
        results.print(Text.from_ansi(row))
        line = Text("  ").append(_label(run)).append(verdict_text(run["verdict"]))
        results.print(line, no_wrap=True, overflow="ellipsis")


def _label(run: Any) -> Text:
    """Return what the run's owner says about it, if anything."""
    words = [*(["\N{BLACK STAR}"] if run["starred"] else []), *([run["name"]] if run["name"] else [])]
    words += [f"[{', '.join(run['tags'])}]"] if run["tags"] else []
    return plain(f"{' '.join(words)}: " if words else "", "bold")


def _held_out(on: Any) -> str:
    """Return the headline figure before and after."""
    if on is None:
        return "-"
    return percent(on["first"]["success"]) + (f" -> {percent(on['latest']['success'])}" if on["latest"] else "")
