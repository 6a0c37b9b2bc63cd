"""`learnloop eval` and `learnloop evaluations`: compare models on the same scenarios."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import bar, figure, percent
from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import AsJson, DataDir, StartedBy, config_file, own_url, setting
from learnloop_service.app.cli.output_files import OLD_NAME
from learnloop_service.app.cli.run_names import with_runs_named
from learnloop_service.app.cli.run_request import overlay, parse_settings, read_run_file
from learnloop_service.app.cli.service_process import service_at
from learnloop_service.app.cli.terminal import (
    Failure,
    folded,
    number,
    plain,
    print_json,
    print_list,
    print_result,
    print_warnings,
    progress,
    results,
    say,
    starter_of,
    table,
    whole,
)
from learnloop_service.app.cli.watching import polled
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, counted_scenarios, signed

app = typer.Typer(no_args_is_help=True, help="List, inspect and control evaluations.")

EvaluationId = Annotated[str, typer.Argument(metavar="EVALUATION_ID")]
_ENDED = ("completed", "failed", "cancelled", "paused")


_File = Annotated[
    Path | None,
    typer.Argument(parser=config_file, metavar="FILE", help="YAML file with the fields of POST /evaluations."),
]
_Run = Annotated[
    str | None,
    typer.Option(
        metavar="RUN_ID",
        help="Run to evaluate: without --model, its base model and its best checkpoint. Its id, the end of it, or "
        "`latest`.",
    ),
]
_Model = Annotated[
    list[str] | None,
    typer.Option(help="Model of the service: a base model, PROJECT/NAME@STEP, a promoted name, a run. Repeatable."),
]
Prompted = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Any other model that the service lists (LEARNLOOP_MODELS). Repeatable."),
]
_Prompt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Stored prompt, as NAME or NAME@VERSION; - for the environment's own texts. Repeatable: all are compared "
        "on the same model, and of two it is decided whether the second one is better.",
    ),
]
_Scenarios = Annotated[int | None, typer.Option(help="Number of scenarios.")]
_Samples = Annotated[int | None, typer.Option(help="Rollouts of each scenario per model.")]
_Split = Annotated[str | None, typer.Option(help="Which scenarios: test, validation or train. \\[default: test]")]
_Seed = Annotated[int | None, typer.Option(help="Random seed.")]
_Settings = Annotated[list[str] | None, setting("Any other field, such as judge.name=correctness; repeatable.")]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File for the report, whose name ends in .json, .md, .svg or, with the extra `plots`, .png; or directory "
        "for all of them.",
    ),
]
_ENDINGS = (".json", ".md", ".svg", ".png")


def evaluate(
    file: _File = None,
    run: _Run = None,
    model: _Model = None,
    prompted: Prompted = None,
    prompt: _Prompt = None,
    scenarios: _Scenarios = None,
    samples: _Samples = None,
    split: _Split = None,
    seed: _Seed = None,
    settings: _Settings = None,
    output: _Output = None,
    url: Annotated[str | None, own_url("evaluation")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same scenarios. Ctrl-C stops watching; the evaluation continues in the service."""
    flags: dict[str, Json] = {
        "run_id": run,
        "scenarios": scenarios,
        "samples": samples,
        "split": split,
        "seed": seed,
        "models": _with_prompts(chosen_models(model, prompted), prompt, run),
        "gate": {} if prompt is not None and len(prompt) == 2 else None,
    }
    request = overlay(read_run_file(file) if file else {}, {**parse_settings(settings or ()), **flags})
    with service_at(url, data_dir) as service:
        accepted = service.call("POST", "/evaluations", json=with_runs_named(service, request))
        print_warnings(accepted)
        ended = watch_evaluation(service, accepted["evaluation_id"])
        if output is not None and ended["report"] is not None:
            _write(service, ended, output)
    _show(ended, as_json)
    raise typer.Exit(0 if ended["status"] == "completed" else 1)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of evaluations.")] = 20,
    started_by: StartedBy = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List evaluations, newest first."""
    evaluations = service.newest("/evaluations", limit, started_by=started_by)
    columns = (*map(whole, ("EVALUATION", "STATUS", "DONE")), Column("MODELS"))
    print_list(evaluations, as_json, "no evaluations", columns, _row)


@app.command(context_settings=OLD_NAME)
def show(
    evaluation_id: EvaluationId,
    output: _Output = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Show an evaluation and its figures."""
    evaluation = service.call("GET", f"/evaluations/{segment(evaluation_id)}")
    if output is not None:
        _write(service, evaluation, output)
    _show(evaluation, as_json)


@app.command()
def cancel(evaluation_id: EvaluationId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Cancel an evaluation. Finished rollouts are kept."""
    _move(service, evaluation_id, "cancel", as_json)


@app.command()
def resume(
    evaluation_id: EvaluationId,
    settings: Annotated[list[str] | None, setting("A new limit, such as budget.max_usd=5; repeatable.")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Resume an evaluation that is paused, failed or was cancelled."""
    _move(service, evaluation_id, "resume", as_json, parse_settings(settings or ()) or None)


@app.command()
def events(evaluation_id: EvaluationId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show what happened to an evaluation, in order."""
    events = service.call("GET", f"/evaluations/{segment(evaluation_id)}/events", params={"limit": 200})["items"]
    lines = (f"{event['seq']:>4}  {event['occurred_at'][:19]}  {event['type']}  {event['actor']}" for event in events)
    print_result(events, as_json, *lines)


@app.command()
def delete(evaluation_id: EvaluationId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Delete an evaluation that has ended, with its trajectories."""
    deleted = service.call("DELETE", f"/evaluations/{segment(evaluation_id)}")
    print_result(deleted, as_json, f"evaluation {evaluation_id} is deleted")


def _move(service: Service, id: str, verb: str, as_json: bool, body: Json = None) -> None:
    moved = service.call("POST", f"/evaluations/{segment(id)}/{verb}", json=body)
    print_result(moved, as_json, f"evaluation {id} is {moved['status']}")


def chosen_models(model: list[str] | None, prompted: list[str] | None) -> list[Json] | None:
    named: list[Json] = [{"model": name} for name in model or ()] + [{"prompted": name} for name in prompted or ()]
    return named or None


def _with_prompts(models: list[Json] | None, prompts: list[str] | None, run: str | None) -> list[Json] | None:
    """Return the models with each of the prompts: one model, by default the run's best or the service's base."""
    if not prompts:
        return models
    if models is not None and len(models) > 1:
        raise typer.BadParameter("compares prompts on one model; name one", param_hint="--prompt")
    model = models[0] if models else {} if run is None else {"model": run}
    return [{**model, "prompt": None if prompt == "-" else prompt} for prompt in prompts]


def watch_evaluation(service: Service, id: str) -> Json:
    """Show the progress of an evaluation on a terminal until it ends, and return it."""
    with progress.status(f"evaluation {id}") as display:

        def show_progress(evaluation: Json) -> None:
            waits = f"; waits: {evaluation['wait_reason']}" if evaluation["wait_reason"] else ""
            display.update(
                f"evaluation {id} is {evaluation['status']} {bar(evaluation['done'], evaluation['total'])} "
                f"{evaluation['done']}/{evaluation['total']}{waits}"
            )

        return polled(lambda: service.call("GET", f"/evaluations/{segment(id)}"), show_progress, _ENDED, display.update)


def trial_decision(evaluation: Json) -> str | None:
    """Return what a trial decided; None if it failed or was cancelled."""
    decision: str | None = ((evaluation["report"] or {}).get("trial") or {}).get("decision")
    return decision


def _write(service: Service, evaluation: Json, to: Path) -> None:
    """Write the report on an evaluation to a file in the form that its name ends in, or all forms to a directory."""
    from learnloop_service.app.plots.png import NoRenderer

    if evaluation["report"] is None:
        raise Failure(f"evaluation {evaluation['evaluation_id']} has no report: it is {evaluation['status']}")
    try:
        if to.suffix.lower() in _ENDINGS:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(_report(service, evaluation, to.suffix.lower()))
            return
        to.mkdir(parents=True, exist_ok=True)
        for ending in _ENDINGS:
            with suppress(NoRenderer):  # report.svg has the same plot
                (to / f"report{ending}").write_bytes(_report(service, evaluation, ending))
    except NoRenderer as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot write to {to}: {error.strerror}") from error


def _report(service: Service, evaluation: Json, ending: str) -> bytes:
    """Return the report on an evaluation in a form. Raises NoRenderer."""
    from learnloop_service.app.plots.png import png

    if ending == ".json":
        return json.dumps(evaluation, indent=2, ensure_ascii=False).encode()
    form = "markdown" if ending == ".md" else "svg"
    text = service.read(f"/evaluations/{evaluation['evaluation_id']}/report", {"form": form})
    return png(text) if ending == ".png" else text.encode()


def _show(evaluation: Json, as_json: bool) -> None:
    if as_json:
        print_json(evaluation)
        return
    rollouts = f"{evaluation['done']} of {counted(evaluation['total'], 'rollout')}"
    say(f"evaluation {evaluation['evaluation_id']} is {evaluation['status']}, {rollouts}{starter_of(evaluation)}")
    if evaluation["error"]:
        say(evaluation["error"], "red")
    if evaluation["status"] in ("paused", "queued") and evaluation["wait_reason"]:
        say(evaluation["wait_reason"])
    if report := evaluation["report"]:
        level, scenarios = (
            percent(report["method"]["level"]),
            counted_scenarios(report["scenarios"], report.get("split")),
        )
        results.print(f"{scenarios}, {level} intervals, differences from the first model")
        results.print(evaluation_table(report))
        if gate := report.get("gate"):
            results.print(gate_sentence(report["models"], gate))


def gate_sentence(models: Json, gate: Json) -> str:
    """Return what a gate decided."""
    first, second = (model["label"] for model in models)
    counts = f"{gate['won']} won and {gate['lost']} lost of {counted(gate['tasks'], 'task')}"
    if gate["decision"] == "better":
        return f"{second} is better than {first}: {counts}. The error of saying so is at most {percent(gate['error'])}."
    return f"{second} was not shown to be better than {first}: {counts}. More tasks can show smaller differences."


def evaluation_table(report: Json) -> Table:
    """Return a report's models with their success, its difference from the first model's, and other figures."""
    figures = map(number, ("SUCCESS", "DIFFERENCE", "REWARD", "SOURCES", "TURNS", "COST"))
    return table([folded("MODEL"), *figures], map(_model_row, report["models"]))


def _model_row(model: Json) -> tuple[str | Text, ...]:
    return (
        plain(model["label"]),
        _percents(model["success"]),
        _points(model["difference"]["success"]),
        figure(model["reward"] and model["reward"]["mean"]),
        percent(model["sources"] and model["sources"]["mean"]),
        figure(model["turns"] and model["turns"]["mean"]),
        "-" if model["cost_usd"] is None else f"${model['cost_usd']:.4f}",
    )


def _percents(interval: Json) -> str:
    """Return the mean in percent with its interval."""
    if interval is None:
        return "-"
    return f"{percent(interval['mean'])} [{100 * interval['low']:.0f}, {100 * interval['high']:.0f}]"


def _points(interval: Json) -> str:
    """Return a difference of shares in percentage points with its interval."""
    if interval is None:
        return "-"
    mean, low, high = (signed(100 * interval[name]) for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _row(listed: Json) -> tuple[str, ...]:
    rollouts = f"{listed['done']}/{listed['total']}"
    return listed["evaluation_id"], listed["status"], rollouts, ", ".join(listed["models"])
