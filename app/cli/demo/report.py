"""Prints the texts of `learnloop demo`: an introduction, the result, and links to it."""

from pathlib import Path

from rich.console import Console
from rich.padding import Padding

from learnloop_service.app.cli.charts import duration, figure
from learnloop_service.app.cli.held_out import held_out_table
from learnloop_service.app.cli.run_report import verdict_text
from learnloop_service.app.cli.watching import page_of
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted


def print_introduction(console: Console, introduction: str, iterations: int) -> None:
    """Print what is trained, on which tasks, and how it is judged."""
    length = counted(iterations, "iteration")
    console.print(f"Learnloop demo: {length} of reinforcement learning on this machine", style="bold")
    console.print(Padding(introduction, (0, 0, 1, 2), expand=False))


def print_figures(console: Console, run: Json, document: Json) -> None:
    """Print whether the run learned, the figures before and after training, and how long it took."""
    console.print()
    console.print(verdict_text(run["verdict"]))
    console.print()
    console.print(held_out_table(run["evaluations"]))
    speed = f"{figure(document['rollouts_per_s'], 1)}/s, {document['tokens_per_s'] or 0:,.0f} tokens/s"
    console.print(
        f"\n{counted(document['iterations'], 'iteration')}, {counted(document['rollouts'], 'rollout')} in "
        f"{duration(document['seconds'])} ({speed}), including training and tools. "
        f"Total time {duration(document['total_seconds'])}."
    )


def print_links(console: Console, document: Json, url: str | None, data_dir: Path) -> None:
    """Print links to all results: in the service at `url`, or with the command that starts it again."""
    if url is None:
        console.print("\nEvery trajectory is stored. To look at them, start the service again:", style="bold")
        console.print(f"  learnloop serve --data-dir {data_dir}", soft_wrap=True)
        url = "http://127.0.0.1:8000"
    else:
        console.print("\nEvery trajectory is stored:", style="bold")
    run = f"{url}/runs/{document['run_id']}"
    for what, link in (
        ("dashboard", page_of(url, document["run_id"])),
        ("run", run),
        ("trajectories", f"{run}/trajectories?split=test"),
        ("API", f"{url}/docs"),
    ):
        console.print(f"  {what:<14}{link}", soft_wrap=True)
    for what in ("answer", "email"):
        if examples := document.get(f"{what}s"):
            console.print(
                f"  {'one ' + what:<14}{url}/trajectories/{examples[0]['trained']['trajectory_id']}", soft_wrap=True
            )


def print_report(console: Console, file: Path) -> None:
    """Print where the report on the run is."""
    console.print("\nAll of it in one file, to read offline and pass on:", style="bold")
    console.print(f"  {file}", soft_wrap=True)
