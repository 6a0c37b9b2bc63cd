"""`learnloop models`: trained models, their promoted names, export and deletion."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

import httpx
import typer
from rich.table import Table

from app.cli.charts import percent
from app.cli.client import Service, ServiceRefused, ServiceUnreachable
from app.cli.evaluations import trial_decision, watch_evaluation
from app.cli.options import DEFAULT_URL, AsJson, EndRelease, Url
from app.cli.terminal import Failure, print_json, results
from environment.json_type import Json
from training.protocol.model_name import ModelName

app = typer.Typer(no_args_is_help=True, help="List models, and promote, export, push and delete their checkpoints.")

Model = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]
_EXPORT_TIMEOUT_S = 600.0
_PUSH_TIMEOUT_S = 3660.0
"""Longer than the time that any service allows for a push."""


class PushTarget(StrEnum):
    """Where a checkpoint can be pushed to."""

    HF = "hf"
    S3 = "s3"


class ModelService(Service):
    """The part of the API for models."""

    def __enter__(self) -> Self:
        return self

    def models(self) -> list[Json]:
        """Return all models that the caller can use."""
        items: list[Json] = self._call("GET", "/models")["items"]
        return items

    def model(self, name: str) -> Json:
        """Return a model with its checkpoints."""
        return self._call("GET", _path(name))

    def promote(self, name: str, request: dict[str, Json]) -> Json:
        """Promote a checkpoint to a name. With `if_better_than` return the evaluation that decides this."""
        return self._call("POST", f"{_path(name)}/promote", json=request)

    def promotions(self, name: str) -> list[Json]:
        """Return all checkpoints that a name was promoted to."""
        items: list[Json] = self._call("GET", f"/promotions/{_model(name)}")["items"]
        return items

    def delete_checkpoint(self, name: str, step: int) -> Json:
        """Delete a checkpoint permanently."""
        return self._call("DELETE", f"{_path(name)}/checkpoints/{step}")

    def push(self, name: str, request: dict[str, Json]) -> Json:
        """Push a checkpoint, and return what was pushed where."""
        return self._call("POST", f"{_path(name)}/push", json=request)

    def export(self, name: str, step: int | None, to: Path) -> int:
        """Write a checkpoint to a tar file, and return its size in bytes. A partial file never gets the final name."""
        unfinished = to.with_name(f".{to.name}.unfinished")
        path = f"{_path(name)}/export"
        params = {} if step is None else {"step": step}
        try:
            with self._http.stream("GET", path, params=params) as reply, unfinished.open("wb") as file:
                if not reply.is_success:
                    reply.read()
                    raise ServiceRefused(reply.status_code, f"GET {path} failed: {reply.text}")
                for piece in reply.iter_bytes():
                    file.write(piece)
            unfinished.rename(to)
        except httpx.TransportError as error:
            raise ServiceUnreachable(f"the export of {name} was interrupted ({error})") from error
        except OSError as error:
            raise Failure(f"cannot write {to}: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)
        return to.stat().st_size


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List base models and trained models."""
    with ModelService(url) as service:
        found = service.models()
    print_json(found) if as_json else results.print(_models_table(found) if found else "no models")


@app.command()
def show(model: Model, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a model's checkpoints."""
    with ModelService(url) as service:
        found = service.model(model)
    print_json(found) if as_json else results.print(_checkpoints_table(found["checkpoints"]))


@app.command()
def promote(
    model: Model,
    to: Annotated[str, typer.Option("--as", metavar="NAME", help="Name to promote it to.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint. \\[default: the newest]")] = None,
    if_better: Annotated[
        bool,
        typer.Option(
            "--if-better",
            help="Only if a trial on held-out scenarios shows that it is better than what the name means.",
        ),
    ] = False,
    end_release: EndRelease = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Promote a checkpoint to a name in its project. To roll back, promote the older checkpoint again."""
    with ModelService(url) as service:
        if step is None:
            step = max((each["step"] for each in service.model(model)["checkpoints"]), default=0)
        if if_better:
            asked = service.promote(model, {"step": step, "if_better_than": to, "end_release": end_release})
            decided = watch_evaluation(service, asked["evaluation_id"])
            print_json(decided) if as_json else _print_trial(decided, to)
            raise typer.Exit(0 if trial_decision(decided) == "promote" else 1)
        made = service.promote(model, {"step": step, "as": to, "end_release": end_release})
    print_json(made) if as_json else results.print(
        f"{made['name']} is now {made['model']}@{made['step']}", soft_wrap=True
    )


def _print_trial(evaluation: Json, to: str) -> None:
    if trial_decision(evaluation) is None:
        results.print(f"evaluation {evaluation['evaluation_id']} is {evaluation['status']}: {evaluation['error']}")
        return
    trial, found = evaluation["report"]["trial"], evaluation["report"]["models"][1]["difference"]["success"]
    said = {
        "promote": f"promoted: it is better than what {to} was",
        "refuse": f"not promoted: that it is better by {trial['margin']:.0%} is ruled out",
        "undecided": "not promoted: the scenarios did not suffice",
        "overtaken": f"not promoted: {to} was given to another checkpoint meanwhile, or has a live release",
    }
    difference = (
        "" if found is None else f", difference {found['mean']:+.1%} [{found['low']:+.1%}, {found['high']:+.1%}]"
    )
    results.print(f"{said[trial['decision']]} ({trial['pairs']} scenarios{difference})", soft_wrap=True)


@app.command()
def history(
    name: Annotated[str, typer.Argument(metavar="PROJECT/NAME")], url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show all checkpoints that a name was promoted to, newest first."""
    with ModelService(url) as service:
        found = service.promotions(name)
    if as_json:
        print_json(found)
        return
    for each in found:
        line = f"{each['created_at'][:19]}  {each['model']}@{each['step']}  by {each['actor']}"
        results.print(line, soft_wrap=True)


@app.command()
def export(
    model: Model,
    to: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="The tar file to write.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint. \\[default: the newest]")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Write a checkpoint to a tar file: safetensors in the Hugging Face or peft layout, with a manifest of hashes."""
    with ModelService(url, timeout_s=_EXPORT_TIMEOUT_S) as service:
        size = service.export(model, step, to)
    results.print(f"{to}: {size} bytes", soft_wrap=True)


@app.command()
def push(
    model: Model,
    to: Annotated[PushTarget, typer.Option(help="A Hugging Face repository, or an S3-compatible store.")],
    repo: Annotated[str | None, typer.Option(metavar="NAMESPACE/NAME", help="The repository, with --to hf.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Prefix below that of the project, with --to s3. \\[default: NAME/STEP]")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint. \\[default: the newest]")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Push a checkpoint to a repository or store that the operator of the service allows."""
    named = {"to": to.value, "repo": repo, "prefix": prefix, "step": step}
    request = {name: value for name, value in named.items() if value is not None}
    with ModelService(url, timeout_s=_PUSH_TIMEOUT_S) as service:
        pushed = service.push(model, request)
    if as_json:
        print_json(pushed)
        return
    at = f" at {pushed['revision']}" if pushed["revision"] else ""
    results.print(f"{pushed['model']}@{pushed['step']} is now in {pushed['url']}{at}", soft_wrap=True)


@app.command()
def delete(
    model: Model,
    step: Annotated[int, typer.Option(min=0, help="Step of the checkpoint.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a checkpoint permanently. The newest, the best one of a run and promoted ones cannot be deleted,
    nor those of a live release."""
    with ModelService(url) as service:
        left = service.delete_checkpoint(model, step)
    if as_json:
        print_json(left)
        return
    steps = ", ".join(str(each["step"]) for each in left["checkpoints"])
    results.print(f"{model}@{step} is deleted; remaining steps: {steps}", soft_wrap=True)


def _path(name: str) -> str:
    return f"/models/{_model(name)}"


def _model(name: str) -> ModelName:
    try:
        model = ModelName.parse(name)
    except ValueError as error:
        raise Failure(str(error)) from error
    if model.step is not None:
        raise Failure(f"{name!r} names a checkpoint; give PROJECT/NAME, and the step as --step")
    return model


def _models_table(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("MODEL", "BACKEND", "STEP", "PROMOTED AS"):
        table.add_column(heading, no_wrap=True)
    for each in found:
        step = "-" if each["step"] is None else str(each["step"])
        table.add_row(each["model"], each["backend"], step, " ".join(each["promoted_as"]))
    return table


def _checkpoints_table(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("STEP", "SUCCESS", "BEST", "TAUGHT BY", "RUN", "CREATED", "PROMOTED AS"):
        table.add_column(heading, no_wrap=True)
    for each in found:
        table.add_row(
            str(each["step"]),
            "-" if each["success"] is None else percent(each["success"]),
            "best" if each["is_best"] else "",
            _taught_by(each["metrics"]),
            each["run_id"] or "-",
            (each["created_at"] or "-")[:19],
            " ".join(each["promoted_as"]),
        )
    return table


def _taught_by(metrics: Json) -> str:
    """Return how many of the groups of a step had rewards that differ."""
    trainable, submitted = (metrics.get(f"num_groups_{name}") for name in ("trainable", "submitted"))
    return "-" if trainable is None or submitted is None else f"{trainable:.0f} of {submitted:.0f} groups"
