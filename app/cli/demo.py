"""`learnloop demo`: train the shipped tiny model on this machine, and ask it before and after."""

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from app.cli.demo_figures import ask_both, demo_document, held_out_scenarios
from app.cli.demo_report import print_answers, print_figures, print_introduction, print_links
from app.cli.options import AsJson
from app.cli.service_process import own_service
from app.cli.terminal import Failure, print_json, progress, results
from app.cli.watching import RunDisplay, Waiting, run_to_end

_QUESTIONS = 3


def demo(
    environment: Annotated[str, typer.Option(help="What the agent learns.")] = "email_search",
    iterations: Annotated[int, typer.Option(min=1, max=10_000, help="Rounds of trying, judging and training.")] = 14,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Another seed: other tasks, other luck.")] = 0,
    data_dir: Annotated[
        Path, typer.Option(envvar="LEARNLOOP_DATA_DIR", file_okay=False, help="Where the runs and models are kept.")
    ] = Path(".learnloop/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running at the end, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a tiny model on this machine by reinforcement learning, and ask it questions before and after.

    Starts the whole service, posts a learn-loop through its API, and needs no key, no GPU and no network.
    """
    started = time.monotonic()
    request = {"environment": {"name": environment}, "iterations": iterations, "seed": seed}
    print_introduction(progress, environment, iterations)
    with own_service(data_dir, waiting=Waiting(progress).show) as service:
        with RunDisplay(progress) as display:
            run = run_to_end(service, request, display)
        if run["status"] != "completed":
            raise Failure(f"the run {run['run_id']} is {run['status']}: {run['error'] or 'no reason is known'}")
        scenarios = held_out_scenarios(service, run["run_id"], _QUESTIONS)
        answers = [ask_both(service, run, scenario) for scenario in scenarios]
        document = demo_document(run, answers, time.monotonic() - started)
        if as_json:
            print_json(document)
        else:
            print_figures(results, document)
            print_answers(results, document)
            print_links(results, document, service.url if keep else None, data_dir)
        if keep:
            progress.print(f"\nThe service runs at {service.url} until Ctrl-C.")
            _wait_for_interrupt()


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
