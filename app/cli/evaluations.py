"""`learnloop eval` and `learnloop evaluations`: compare models on the same scenarios."""

import json
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from app.cli.charts import bar, figure, percent
from app.cli.client import Service
from app.cli.options import DEFAULT_URL, URL_VARIABLE, AsJson, DataDir, Url, config_file
from app.cli.run_request import BadRunFile, overlay, parse_settings, read_run_file
from app.cli.serve import data_directory
from app.cli.service_process import own_service
from app.cli.terminal import Failure, plain, print_json, progress, results
from app.cli.watching import Waiting
from environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="List, inspect and control evaluations.")

EvaluationId = Annotated[str, typer.Argument(metavar="EVALUATION_ID")]
_ENDED = ("completed", "failed", "cancelled", "paused")
_POLL_S = 0.5


class Evaluations:
    """The part of the API for evaluations."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def start(self, request: Json) -> Json:
        """Queue an evaluation."""
        return self._service.call("POST", "/evaluations", json=request)

    def get(self, id: str) -> Json:
        """Return an evaluation with its figures."""
        return self._service.call("GET", f"/evaluations/{id}")

    def move(self, id: str, verb: str, body: Json = None) -> Json:
        """Cancel or resume an evaluation."""
        return self._service.call("POST", f"/evaluations/{id}/{verb}", json=body)

    def events(self, id: str) -> list[Json]:
        """Return the events of an evaluation in order."""
        items: list[Json] = self._service.call("GET", f"/evaluations/{id}/events", params={"limit": 200})["items"]
        return items

    def delete(self, id: str) -> Json:
        """Delete an evaluation that has ended."""
        return self._service.call("DELETE", f"/evaluations/{id}")

    def listed(self, limit: int) -> list[Json]:
        """Return the newest evaluations."""
        items: list[Json] = self._service.call("GET", "/evaluations", params={"limit": limit})["items"]
        return items

    def report(self, id: str, form: str) -> str:
        """Return the report as `markdown` or `svg`."""
        return self._service.read(f"/evaluations/{id}/report", params={"form": form})


_File = Annotated[
    Path | None,
    typer.Argument(parser=config_file, metavar="FILE", help="YAML file with the fields of POST /evaluations."),
]
_Run = Annotated[
    str | None, typer.Option(help="Run to evaluate: without --model, its base model and its best checkpoint.")
]
_Model = Annotated[
    list[str] | None,
    typer.Option(help="Model of the service: a base model, PROJECT/NAME@STEP, a promoted name, a run. Repeatable."),
]
_Prompted = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Any other model that the service lists (LEARNLOOP_MODELS). Repeatable."),
]
_Scenarios = Annotated[int | None, typer.Option(help="Number of scenarios.")]
_Samples = Annotated[int | None, typer.Option(help="Rollouts of each scenario per model.")]
_Seed = Annotated[int | None, typer.Option(help="Random seed.")]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Any other field, such as judge.name=correctness; repeatable."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Directory for report.json, report.md, report.svg and, with the extra `plots`, report.png.",
    ),
]
_Url = Annotated[
    str | None,
    typer.Option(envvar=URL_VARIABLE, help="URL of a running service. \\[default: start one for this evaluation]"),
]


def evaluate(
    file: _File = None,
    run: _Run = None,
    model: _Model = None,
    prompted: _Prompted = None,
    scenarios: _Scenarios = None,
    samples: _Samples = None,
    seed: _Seed = None,
    settings: _Settings = None,
    out: _Out = None,
    url: _Url = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same held-out scenarios. Ctrl-C stops watching; the evaluation continues in the service."""
    flags = {
        "run_id": run,
        "scenarios": scenarios,
        "samples": samples,
        "seed": seed,
        "models": chosen_models(model, prompted),
    }
    try:
        request = overlay(read_run_file(file) if file else {}, {**parse_settings(settings or ()), **flags})
    except BadRunFile as error:
        raise typer.BadParameter(str(error)) from error
    with _service(url, data_dir) as service:
        evaluations = Evaluations(service)
        accepted = evaluations.start(request)
        for warning in accepted["warnings"]:
            progress.print(plain(warning), style="yellow", soft_wrap=True)
        id = accepted["evaluation_id"]
        ended = watch_evaluation(service, id)
        if out is not None and ended["report"] is not None:
            _write(evaluations, ended, out)
    _show(ended, as_json)
    raise typer.Exit(0 if ended["status"] == "completed" else 1)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of evaluations.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List evaluations, newest first."""
    with Service(url) as service:
        found = Evaluations(service).listed(limit)
    print_json(found) if as_json else results.print(_list_table(found) if found else "no evaluations")


@app.command()
def show(
    evaluation_id: EvaluationId,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Directory for report.json, report.md, report.svg and, with the extra `plots`, report.png.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show an evaluation and its figures."""
    with Service(url) as service:
        found = Evaluations(service).get(evaluation_id)
        if out is not None:
            _write(Evaluations(service), found, out)
    _show(found, as_json)


@app.command()
def cancel(evaluation_id: EvaluationId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel an evaluation. Finished rollouts are kept."""
    _move(evaluation_id, "cancel", url, as_json)


@app.command()
def resume(
    evaluation_id: EvaluationId,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="A new limit, such as budget.max_usd=5; repeatable."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Resume an evaluation that is paused, failed or was cancelled."""
    try:
        body = parse_settings(settings or ())
    except BadRunFile as error:
        raise typer.BadParameter(str(error)) from error
    _move(evaluation_id, "resume", url, as_json, body or None)


@app.command()
def events(evaluation_id: EvaluationId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what happened to an evaluation, in order."""
    with Service(url) as service:
        found = Evaluations(service).events(evaluation_id)
    if as_json:
        print_json(found)
        return
    for each in found:
        line = f"{each['seq']:>4}  {each['occurred_at'][:19]}  {each['type']}  {each['actor']}"
        results.print(plain(line), soft_wrap=True)


@app.command()
def delete(evaluation_id: EvaluationId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete an evaluation that has ended, with its trajectories."""
    with Service(url) as service:
        deleted = Evaluations(service).delete(evaluation_id)
    print_json(deleted) if as_json else results.print(f"evaluation {evaluation_id} is deleted")


def _move(id: str, verb: str, url: str, as_json: bool, body: Json = None) -> None:
    with Service(url) as service:
        moved = Evaluations(service).move(id, verb, body)
    print_json(moved) if as_json else results.print(f"evaluation {id} is {moved['status']}")


def chosen_models(model: list[str] | None, prompted: list[str] | None) -> list[Json] | None:
    named: list[Json] = [{"model": name} for name in model or ()] + [{"prompted": name} for name in prompted or ()]
    return named or None


def _service(url: str | None, data_dir: Path | None) -> AbstractContextManager[Service]:
    if url is not None:
        return Service(url)
    return own_service(data_directory(data_dir), waiting=Waiting(progress).show)


def watch_evaluation(service: Service, id: str) -> Json:
    """Show the progress of an evaluation on a terminal until it ends, and return it."""
    evaluations = Evaluations(service)
    with progress.status(f"evaluation {id}") as display:
        while (found := evaluations.get(id))["status"] not in _ENDED:
            waits = f"; waits: {found['wait_reason']}" if found["wait_reason"] else ""
            display.update(
                f"evaluation {id} is {found['status']} {bar(found['done'], found['total'])} "
                f"{found['done']}/{found['total']}{waits}"
            )
            time.sleep(_POLL_S)
    return found


def trial_decision(evaluation: Json) -> str | None:
    """Return what a trial decided; None if it failed or was cancelled."""
    decision: str | None = ((evaluation["report"] or {}).get("trial") or {}).get("decision")
    return decision


def _write(evaluations: Evaluations, found: Json, out: Path) -> None:
    from app.plots.png import NoRenderer, png

    if found["report"] is None:
        raise Failure(f"evaluation {found['evaluation_id']} has no report: it is {found['status']}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(json.dumps(found, indent=2, ensure_ascii=False), encoding="utf-8")
        for form, name in (("markdown", "report.md"), ("svg", "report.svg")):
            text = evaluations.report(found["evaluation_id"], form)
            (out / name).write_text(text, encoding="utf-8")
        with suppress(NoRenderer):  # report.svg has the same plot
            (out / "report.png").write_bytes(png(text))
    except OSError as error:
        raise Failure(f"cannot write to {out}: {error.strerror}") from error


def _show(found: Json, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    results.print(
        f"evaluation {found['evaluation_id']} is {found['status']}, {found['done']} of {found['total']} rollouts",
        soft_wrap=True,
    )
    if found["error"]:
        results.print(plain(found["error"]), style="red", soft_wrap=True)
    if found["status"] == "paused":
        results.print(plain(found["wait_reason"]), soft_wrap=True)
    if report := found["report"]:
        level = percent(report["method"]["level"])
        results.print(f"{report['scenarios']} scenarios, {level} intervals, differences from the first model")
        results.print(evaluation_table(report))


def evaluation_table(report: Json) -> Table:
    """Return a report's models with their success, its difference from the first model's, and other figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MODEL", overflow="fold")
    for name in ("SUCCESS", "DIFFERENCE", "REWARD", "SOURCES", "TURNS", "COST"):
        table.add_column(name, no_wrap=True, justify="right")
    for model in report["models"]:
        cost = "-" if model["cost_usd"] is None else f"${model['cost_usd']:.4f}"
        table.add_row(
            plain(model["label"]),
            _percents(model["success"]),
            _percents(model["difference"]["success"]),
            figure(model["reward"] and model["reward"]["mean"]),
            percent(model["sources"] and model["sources"]["mean"]),
            figure(model["turns"] and model["turns"]["mean"]),
            cost,
        )
    return table


def _percents(interval: Json) -> str:
    """Return the mean in percent with its interval."""
    if interval is None:
        return "-"
    return f"{percent(interval['mean'])} [{100 * interval['low']:.0f}, {100 * interval['high']:.0f}]"


def _list_table(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("EVALUATION", "STATUS", "DONE", "MODELS"):
        table.add_column(name, no_wrap=name != "MODELS")
    for each in found:
        table.add_row(
            each["evaluation_id"], each["status"], f"{each['done']}/{each['total']}", ", ".join(each["models"])
        )
    return table
