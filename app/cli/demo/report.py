"""What `learnloop demo` tells a newcomer: what is going on, what came of it, and where to look."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding

from app.cli.charts import duration, figure
from app.cli.held_out import held_out_table

Json = Any


def print_introduction(console: Console, introduction: str, iterations: int) -> None:
    """What is trained, on what, judged how."""
    console.print(f"Learnloop demo: {iterations} iterations of reinforcement learning on this machine", style="bold")
    console.print(Padding(introduction, (0, 0, 1, 2), expand=False))


def print_figures(console: Console, document: Json) -> None:
    """The table of before and after, and how long it took."""
    console.print()
    console.print(held_out_table(document))
    speed = f"{figure(document['rollouts_per_s'], 1)} tries/s, {document['tokens_per_s'] or 0:,.0f} tokens/s"
    console.print(
        f"\n{document['iterations']} iterations, {document['rollouts']:,} tries in {duration(document['seconds'])}: "
        f"{speed}, with training and tools. In all {duration(document['total_seconds'])}."
    )


def print_links(console: Console, document: Json, url: str | None, data_dir: Path) -> None:
    """Where to look at it all: the service at `url`, or the command that starts it again."""
    if url is None:
        console.print("\nEvery try is kept. To look at them, start the service again:", style="bold")
        console.print(f"  learnloop serve --data-dir {data_dir}", soft_wrap=True)
        url = "http://127.0.0.1:8000"
    else:
        console.print("\nEvery try is kept:", style="bold")
    run = f"{url}/runs/{document['run_id']}"
    for what, link in (
        ("the run", run),
        ("its tries", f"{run}/trajectories?split=test"),
        ("the API", f"{url}/docs"),
    ):
        console.print(f"  {what:<12}{link}", soft_wrap=True)
    for what in ("answer", "email"):
        if found := document.get(f"{what}s"):
            console.print(
                f"  {'one ' + what:<12}{url}/trajectories/{found[0]['trained']['trajectory_id']}", soft_wrap=True
            )
