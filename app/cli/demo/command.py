"""`learnloop demo`: trains the included tiny model on this machine, and shows its work before and after."""

import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.demo.document import demo_document
from app.cli.demo.jobs import demo_job
from app.cli.demo.report import print_figures, print_introduction, print_links
from app.cli.options import AsJson
from app.cli.service_process import own_service
from app.cli.terminal import Failure, print_json, progress, results
from app.cli.watching import RunDisplay, Waiting, run_to_end


def demo(
    environment: Annotated[str, typer.Option(help="Environment to train in.")] = "email_search",
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Number of training iterations. \\[default: depends on the environment]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Random seed; another one gives other tasks.")] = 0,
    data_dir: Annotated[
        Path, typer.Option(envvar="LEARNLOOP_DATA_DIR", file_okay=False, help="Directory for the runs and models.")
    ] = Path(".learnloop/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the service running until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a tiny model on this machine by reinforcement learning, and show its work before and after.

    Starts the whole service and a learn-loop through its API. Needs no API key, GPU or network.
    """
    started = time.monotonic()
    job = demo_job(environment)
    request: dict[str, Any] = {
        "environment": {"name": environment},
        "iterations": iterations or job.iterations,
        "seed": seed,
    }
    print_introduction(progress, job.introduction.format(environment=environment), request["iterations"])
    with own_service(data_dir, waiting=Waiting(progress).show) as service:
        progress.print(f"Watch it learn in a browser: {service.url}\n", soft_wrap=True)
        with RunDisplay(progress) as display:
            run = run_to_end(service, request, display)
        if run["status"] != "completed":
            raise Failure(f"run {run['run_id']} is {run['status']}: {run['error'] or 'unknown reason'}")
        examples = job.examples(service, run)
        document = demo_document(run, examples, time.monotonic() - started)
        if as_json:
            print_json(document)
        else:
            print_figures(results, run, document)
            job.print_examples(results, document)
            print_links(results, document, service.url if keep else None, data_dir)
        if keep:
            progress.print(f"\nThe service is running at {service.url} until Ctrl-C.")
            _wait_for_interrupt()


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
