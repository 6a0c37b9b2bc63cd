"""`learnloop pipeline`: data, training, evaluation and promotion from one file."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from learnloop_service.app.cli.charts import duration, percent
from learnloop_service.app.cli.options import AsJson, DataDir, config_file, own_url, setting
from learnloop_service.app.cli.run_request import BadRunFile, parse_settings
from learnloop_service.app.cli.serve import data_directory
from learnloop_service.app.cli.terminal import plain, print_json, say

if TYPE_CHECKING:  # importing it takes a second
    from learnloop_service.app.cli.pipeline.steps import StepOutcome


class Step(StrEnum):
    """What to run."""

    DATA = "data"
    TRAIN = "train"
    EVAL = "eval"
    PROMOTE = "promote"
    ALL = "all"


def _step(name: str) -> Step:
    """Return the step of that name, or of its old one."""
    from learnloop_service.app.cli.pipeline.config import OLD_PROMOTE

    try:
        return Step.PROMOTE if name == OLD_PROMOTE else Step(name)
    except ValueError:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Step)}.") from None


def pipeline(
    step: Annotated[
        Step,
        typer.Argument(
            parser=_step,
            metavar=f"[{'|'.join(Step)}]",
            help="The step to run; all: every step that the file has a section for.",
        ),
    ],
    config: Annotated[Path, typer.Option(parser=config_file, metavar="FILE", help="YAML file with the pipeline.")],
    settings: Annotated[list[str] | None, setting("Replace a field, such as train.iterations=5; repeatable.")] = None,
    url: Annotated[str | None, own_url("pipeline")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Prepare data, train, evaluate and promote. Steps whose inputs have not changed are skipped; one that was
    interrupted continues."""
    from learnloop_service.app.cli.pipeline.config import BadPipeline, LoadedPipeline
    from learnloop_service.app.cli.pipeline.steps import PipelineRunner

    try:
        read = LoadedPipeline(config, parse_settings(settings or ()))
    except (BadPipeline, BadRunFile) as error:
        raise typer.BadParameter(str(error), param_hint="--config") from error
    finished: list[StepOutcome] = []

    def report(outcome: "StepOutcome") -> None:
        finished.append(outcome)
        if not as_json:
            _print(outcome)

    with PipelineRunner(read, data_directory(data_dir), url, report) as runner:
        runner.run(step)
    if as_json:
        print_json([asdict(outcome) for outcome in finished])


setattr(pipeline, "rich_help_panel", "Start")  # noqa: B010


def _print(outcome: "StepOutcome") -> None:
    how = ("unchanged", "dim") if outcome.skipped else (duration(outcome.seconds), "green")
    summary = plain(_result_text(outcome.step, outcome.result))
    say(Text.assemble((f"{outcome.step:8}", "bold"), how, "  ", summary))


def _result_text(step: str, result: Any) -> str:
    if step == "data":
        return str(result["data"])
    if step == "train":
        success = percent(result["success"])
        return f"{result['model']}@{result['step']}, validation success {success} (run {result['run_id']})"
    if step == "eval":
        figures = ", ".join(
            f"{contestant['model']} {percent(contestant['success']['mean'])}" for contestant in result["models"]
        )
        return f"{figures} (evaluation {result['evaluation_id']})"
    return f"{result['name']} is {result['model']}@{result['step']}"
