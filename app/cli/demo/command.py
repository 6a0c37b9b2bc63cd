"""`learnloop demo`: trains the included tiny model on this machine, and shows its work before and after."""

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from learnloop_service.app.cli import data_sources
from learnloop_service.app.cli.client import PATIENCE_S, Service
from learnloop_service.app.cli.demo.document import demo_document
from learnloop_service.app.cli.demo.job import DemoJob
from learnloop_service.app.cli.demo.jobs import demo_job
from learnloop_service.app.cli.demo.real_base import Device, prepare_real_base, print_real_introduction
from learnloop_service.app.cli.demo.report import print_figures, print_introduction, print_links, print_report
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.report import write_report
from learnloop_service.app.cli.serve import require_engine
from learnloop_service.app.cli.service_process import Waiting, own_service
from learnloop_service.app.cli.terminal import Failure, print_json, progress, results
from learnloop_service.app.cli.watching import RunDisplay, run_to_end
from learnloop_service.environment import registry

_BaseModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Base model that others made: a directory in Hugging Face layout, a GGUF file, the name of an added "
        "one, or NAMESPACE/NAME on the Hugging Face hub. \\[default: the included tiny one]",
    ),
]
_DATA_OPTIONS = data_sources.options()
_OwnData = Annotated[
    list[str] | None,
    typer.Option(
        *_DATA_OPTIONS or ("--own-data",),
        metavar="PATH",
        help=" ".join(data_sources.helps()) or "With --base-model: data of your own to learn from.",
        hidden=not _DATA_OPTIONS,
    ),
]
_Device = Annotated[
    Device | None,
    typer.Option(help="With --base-model: what it is trained on. \\[default: cuda, if nvidia-smi finds a GPU]"),
]


def demo(
    environment: Annotated[str, typer.Option(help="Environment to train in.")] = "email_search",
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Number of training iterations. \\[default: depends on the environment]"),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Random seed; another one trains on other tasks.")
    ] = 0,
    data_dir: Annotated[
        Path, typer.Option(envvar="LEARNLOOP_DATA_DIR", file_okay=False, help="Directory for the runs and models.")
    ] = Path(".learnloop/demo"),
    base_model: _BaseModel = None,
    data_paths: _OwnData = None,
    device: _Device = None,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep", help="Keep the service running until Ctrl-C. \\[default: on a terminal, without --json]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a tiny model on this machine by reinforcement learning, and show its work before and after.

    Starts the whole service and a learn-loop through its API. Needs no API key, GPU or network.
    With --base-model another model is trained, on a GPU and with the service's defaults.
    """
    started = time.monotonic()
    _check_options(environment, base_model, data_paths, device)
    require_engine(data_dir)
    job = demo_job(environment)
    request: dict[str, Any] = {"environment": {"name": environment}, "iterations": iterations, "seed": seed}
    real = None
    if base_model is None:
        request["iterations"] = iterations or job.iterations
        print_introduction(progress, job.introduction.format(environment=environment), request["iterations"])
    else:
        real = prepare_real_base(base_model, environment, data_paths or (), device, data_dir)
        request = real.request(request)
        print_real_introduction(progress, real)
    with own_service(data_dir, waiting=Waiting(progress).show, variables=real.variables if real else None) as service:
        stays = not as_json and _is_interactive() if keep is None else keep
        _train_and_show(service, job, request, started, data_dir, keep=stays, as_json=as_json)


def _check_options(
    environment: str, base_model: str | None, data_paths: Sequence[str] | None, device: Device | None
) -> None:
    """Raises Failure if the environment is unknown, or if an option needs another one or another environment."""
    if environment not in registry.names():
        raise Failure(registry.unknown(environment))
    if base_model is None and (data_paths or device):
        options = " and ".join((*_DATA_OPTIONS, "--device"))
        raise Failure(f"{options} need --base-model: the included model learns from invented inboxes only")
    if data_paths and environment not in _DATA_OPTIONS.values():
        options, environments = " and ".join(_DATA_OPTIONS), " and ".join(_DATA_OPTIONS.values())
        raise Failure(f"{options} is for the environment {environments}, not {environment}")
    if data_paths:
        data_sources.data_source(environment)


def _train_and_show(
    service: Service,
    job: DemoJob,
    request: dict[str, Any],
    started: float,
    data_dir: Path,
    *,
    keep: bool,
    as_json: bool,
) -> None:
    with RunDisplay(progress) as display:
        run = run_to_end(service, request, display)
    if run["status"] != "completed":
        raise Failure(f"run {run['run_id']} is {run['status']}: {run['error'] or 'unknown reason'}")
    report = data_dir / "runs" / run["run_id"] / "report.html"
    write_report(service.within(PATIENCE_S), run["run_id"], report)
    document = demo_document(run, job.examples(service, run), time.monotonic() - started) | {"report": str(report)}
    if as_json:
        print_json(document)
    else:
        print_figures(results, run, document)
        job.print_examples(results, document)
        print_links(results, document, service.url if keep else None, data_dir)
        print_report(results, report)
    if keep:
        progress.print(f"\nThe service is running at {service.url} until Ctrl-C.")
        _wait_for_interrupt()


def _is_interactive() -> bool:
    """Whether a person can read what is printed, and press Ctrl-C."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
