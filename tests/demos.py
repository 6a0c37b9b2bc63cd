"""What `learnloop demo` shows of a scripted service's run."""

from io import StringIO
from pathlib import Path
from typing import Any

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.demo.document import demo_document
from learnloop_service.app.cli.demo.job import DemoJob
from learnloop_service.app.cli.demo.report import print_figures, print_introduction, print_links, print_report
from learnloop_service.app.cli.terminal import Terminal
from tests.fakes.scripted_service import RUN_ID, ScriptedService

FIGURES = {
    "held_out": {
        "split": "test",
        "scenarios": 64,
        "sampled": {"before": 0.25, "after": 0.75},
        "greedy": {"before": 0.125, "after": 0.5},
    },
    "mean_reward": {"before": 0.125, "after": 0.625},
    "iterations": 3,
    "seconds": 20.0,
    "rollouts_per_s": 9.6,
    "tokens_per_s": 600.0,
}
"""Figures of the scripted run, whatever its environment."""


def stored_run(scripted: ScriptedService) -> dict[str, Any]:
    scripted.reads = scripted.iterations
    with Service(scripted.url) as service:
        run: dict[str, Any] = service.run(RUN_ID)
    return run


def shown_document(scripted: ScriptedService, job: DemoJob) -> dict[str, Any]:
    run = stored_run(scripted)
    with Service(scripted.url) as service:
        document: dict[str, Any] = demo_document(run, job.examples(service, run), total_s=25.0)
    return document


def shown_report(scripted: ScriptedService, job: DemoJob, **console_settings: Any) -> str:
    document = shown_document(scripted, job)
    console = Terminal(file=(text := StringIO()), width=80, **console_settings)
    print_introduction(console, job.introduction, 3)
    print_figures(console, stored_run(scripted), document)
    job.print_examples(console, document)
    print_links(console, document, "http://127.0.0.1:8000", Path("demo"))
    print_report(console, Path("demo/report.html"))
    return text.getvalue()
