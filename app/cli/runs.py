"""`learnloop runs`: what runs there are and how they do."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.charts import percent
from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.run_report import print_run
from app.cli.terminal import print_json, progress, results
from app.cli.watching import RunDisplay, follow

app = typer.Typer(no_args_is_help=True, help="List, show, watch and cancel runs.")

_VERIFY_TIMEOUT_S = 600.0

RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]


@app.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help="Only runs of that status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    with Service(url) as service:
        found = service.runs(limit, status)
    if as_json:
        print_json(found)
        return
    results.print(_table(found) if found else "no runs")


@app.command()
def show(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one run: how far it is and what it learned."""
    with Service(url) as service:
        run = service.run(run_id)
    print_json(run) if as_json else print_run(run)


@app.command()
def watch(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a run until it ends. Ctrl-C ends the watching, not the run."""
    with Service(url) as service, RunDisplay(progress) as display:
        run = follow(service, run_id, display.show)
    print_json(run) if as_json else print_run(run)
    raise typer.Exit(0 if run["status"] == "completed" else 1)


@app.command()
def cancel(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a run and wait until it has stopped."""
    with Service(url) as service:
        service.cancel(run_id)
        run = follow(service, run_id, lambda _: None)
    print_json(run) if as_json else results.print(f"run {run_id} is {run['status']}")


@app.command()
def verify(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Compute a run's figures again from its stored trajectories. Exits with 1 if one differs."""
    with Service(url, timeout_s=_VERIFY_TIMEOUT_S) as service:
        found = service.verify(run_id)
    print_json(found) if as_json else _print_verification(found)
    raise typer.Exit(0 if found["ok"] else 1)


def _print_verification(found: Any) -> None:
    compared = f"{found['figures']} figures of {found['trajectories']} trajectories in {found['iterations']} iterations"
    if found["ok"]:
        results.print(f"every figure follows from the stored trajectories: {compared}", soft_wrap=True)
        return
    results.print(f"{found['difference_count']} of {compared} differ", soft_wrap=True)
    for each in found["differences"]:
        where = f"iteration {each['iteration']}: {each['what']}" + (
            f" of {each['trajectory_id']}" if each["trajectory_id"] else ""
        )
        results.print(f"  {where}: stored {each['stored']!r}, computed {each['recomputed']!r}", soft_wrap=True)


def _table(found: list[Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("RUN", no_wrap=True, min_width=max(len(run["run_id"]) for run in found))
    table.add_column("STATUS", no_wrap=True, min_width=max(len(run["status"]) for run in found))
    table.add_column("ENVIRONMENT", no_wrap=True)
    table.add_column("DONE", no_wrap=True, justify="right")
    table.add_column("BEST", no_wrap=True, justify="right")
    table.add_column("CREATED", no_wrap=True)
    for run in found:
        place, best = run["progress"], run["best_checkpoint"]
        table.add_row(
            run["run_id"],
            run["status"],
            run["environment"],
            f"{place['iterations_done']}/{place['iterations_total']}",
            percent(best["success"]) if best else "-",
            f"{datetime.fromisoformat(run['created_at']).astimezone():%d %b %H:%M}",
        )
    return table
