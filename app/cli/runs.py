"""`learnloop runs`: list, inspect and control runs."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from app.cli.charts import percent
from app.cli.client import Service
from app.cli.compare import compare
from app.cli.diagnose import diagnose
from app.cli.event_lines import event_line
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.plot_files import check_ending, write_plot
from app.cli.rejudge import rejudge
from app.cli.run_edit import edit
from app.cli.run_report import print_run, verdict_text
from app.cli.run_request import BadRunFile, overlay, parse_settings
from app.cli.terminal import Failure, json_text, plain, print_json, progress, results
from app.cli.watching import ENDED, RunDisplay, follow

app = typer.Typer(no_args_is_help=True, help="List, inspect and control runs.")

_VERIFY_TIMEOUT_S = 600.0

RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]


@app.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    starred: Annotated[bool, typer.Option("--starred", help="Only starred runs.")] = False,
    sort: Annotated[
        str | None, typer.Option(help="What to sort by, highest first: gain, success, tokens, time and others.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of runs.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first or by a figure, with whether each one learned."""
    with Service(url) as service:
        found = service.runs(limit, status=status, tag=tag, starred=starred or None, sort=sort)
    if as_json:
        print_json(found)
        return
    _print_list(found) if found else results.print("no runs")


@app.command()
def show(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a run: its progress and its figures."""
    with Service(url) as service:
        run = service.run(run_id)
    print_json(run) if as_json else print_run(run)


@app.command()
def watch(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a run until it ends: curves, phases, events and why it waits. Ctrl-C stops watching, not the run."""
    with Service(url) as service, RunDisplay(progress) as display:
        run = follow(service, run_id, display.show, note=display.note, away=display.away)
    print_json(run) if as_json else print_run(run)
    raise typer.Exit(0 if run["status"] == "completed" else 1)


@app.command()
def plot(
    run_id: RunId,
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The file: .svg or .png.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Draw a run: rewards with their spread, and held-out success with its intervals, by iteration."""
    check_ending(out)
    with Service(url) as service:
        run = service.run(run_id)
    from app.plots.run import run_svg

    write_plot(run_svg(run), out)
    results.print(f"wrote {out}", soft_wrap=True)


@app.command()
def cancel(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a run and wait until it has stopped."""
    with Service(url) as service:
        service.cancel(run_id)
        run = follow(service, run_id, lambda _: None)
    print_json(run) if as_json else results.print(f"run {run_id} is {run['status']}")


@app.command()
def pause(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a run and wait until it has stopped. Finished work is kept."""
    with Service(url) as service:
        service.ask_of(run_id, "pause")
        run = follow(service, run_id, lambda _: None, until={*ENDED, "paused"})
    print_json(run) if as_json else results.print(f"run {run_id} is {run['status']}")


@app.command()
def resume(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Resume a paused run where it stopped."""
    _ask(run_id, "resume", url, as_json)


@app.command()
def retry(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Retry a failed run. It continues after the last work that was saved."""
    _ask(run_id, "retry", url, as_json)


@app.command()
def fork(
    run_id: RunId,
    checkpoint: Annotated[
        int | None, typer.Option(min=0, help="Step of the checkpoint to start from. \\[default: the best]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new model.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the request to change; repeatable."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a new run from a checkpoint of this one, optionally with other settings."""
    try:
        changed = overlay({}, parse_settings(settings or []))
        request = overlay(changed, {"checkpoint": checkpoint, "model.name": name})
    except BadRunFile as error:
        raise Failure(str(error)) from error
    with Service(url) as service:
        made = service.ask_of(run_id, "fork", request)
    print_json(made) if as_json else results.print(f"run {made['run_id']} is {made['status']}")


@app.command()
def delete(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a run that has ended: its records, its files, and its model unless another run needs it."""
    with Service(url) as service:
        was = service.delete_run(run_id)
    print_json(was) if as_json else results.print(f"run {run_id} is deleted")


@app.command()
def events(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events until the run has ended.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per event.")] = False,
) -> None:
    """Print the events of a run, one per line."""
    with Service(url) as service:
        for event in service.follow_events(run_id) if follow else service.events(run_id):
            line = json_text(event) if as_json else event_line(event)
            results.print(plain(line), soft_wrap=True)


@app.command()
def verify(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Recompute the figures of a run and of its rejudgings from what is stored. The exit code is 1 if any differs."""
    with Service(url, timeout_s=_VERIFY_TIMEOUT_S) as service:
        found = service.verify(run_id)
    print_json(found) if as_json else _print_verification(found)
    raise typer.Exit(0 if found["ok"] else 1)


app.command()(compare)
app.command()(diagnose)
app.command()(edit)
app.command()(rejudge)


def _ask(run_id: str, verb: str, url: str, as_json: bool) -> None:
    with Service(url) as service:
        moved = service.ask_of(run_id, verb)
    print_json(moved) if as_json else results.print(f"run {run_id} is {moved['status']}")


def _print_verification(found: Any) -> None:
    for each in found["lost"]:
        where = f"iteration {each['iteration']}: rollout {each['trajectory_id']}"
        results.print(f"{where} was lost ({each['failure']}): {each['error']}", soft_wrap=True, markup=False)
    compared = f"{found['figures']} figures of {found['trajectories']} trajectories in {found['iterations']} iterations"
    if found["rejudgings"]:
        compared += f" and {found['rejudgings']} rejudgings"
    if found["ok"]:
        results.print(f"all figures agree with the stored trajectories: {compared}", soft_wrap=True)
        return
    results.print(f"{found['difference_count']} of {compared} differ", soft_wrap=True)
    for each in found["differences"]:
        where = f"iteration {each['iteration']}: {each['what']}" + (
            f" of {each['trajectory_id']}" if each["trajectory_id"] else ""
        )
        results.print(f"  {where}: stored {each['stored']!r}, recomputed {each['recomputed']!r}", soft_wrap=True)


def _print_list(found: list[Any]) -> None:
    """Print each run as a line of a table, with its verdict below."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("RUN", no_wrap=True, min_width=max(len(run["run_id"]) for run in found))
    table.add_column("STATUS", no_wrap=True, min_width=max(len(run["status"]) for run in found))
    table.add_column("ENVIRONMENT", no_wrap=True)
    table.add_column("DONE", no_wrap=True, justify="right")
    table.add_column("HELD OUT", no_wrap=True, justify="right")
    table.add_column("CREATED", no_wrap=True)
    for run in found:
        place = run["progress"]
        table.add_row(
            run["run_id"],
            run["status"],
            run["environment"],
            f"{place['iterations_done']}/{place['iterations_total']}",
            _held_out(run["verdict"]["on"]),
            f"{datetime.fromisoformat(run['created_at']).astimezone():%d %b %H:%M}",
        )
    with results.capture() as captured:
        results.print(table)
    title, *rows = captured.get().splitlines()
    results.print(Text.from_ansi(title))
    for row, run in zip(rows, found, strict=True):
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
