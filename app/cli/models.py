"""`learnloop models`: trained models, their promoted names, export and deletion."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import httpx
import typer

from learnloop.errors import why_unreachable
from learnloop_service.app.cli.charts import percent
from learnloop_service.app.cli.client import HERE, PATIENCE_S, Service, ServiceAt, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.evaluations import trial_decision, watch_evaluation
from learnloop_service.app.cli.options import AsJson, EndRelease, PromptOption, named_model, prompt_field, served
from learnloop_service.app.cli.terminal import (
    Failure,
    print_json,
    print_list,
    print_result,
    print_warnings,
    results,
    say,
    table,
    whole,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed
from learnloop_service.training.protocol.model_name import ModelName

app = typer.Typer(no_args_is_help=True, help="List models, and promote, export, push and delete their checkpoints.")

Model = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]
_PUSH_TIMEOUT_S = 3660.0
"""Longer than the time that any service allows for a push."""


class PushTarget(StrEnum):
    """Where a checkpoint can be pushed to."""

    HF = "hf"
    S3 = "s3"


def _export(service: Service, name: str, step: int | None, to: Path) -> int:
    """Write a checkpoint to a tar file, and return its size in bytes. A partial file never gets the final name."""
    unfinished = to.with_name(f".{to.name}.unfinished")
    path = f"{_path(name)}/export"
    params = {} if step is None else {"step": step}
    try:
        with service.http.stream("GET", path, params=params) as reply, unfinished.open("wb") as file:
            if not reply.is_success:
                reply.read()
                raise ServiceRefused(reply.status_code, f"GET {path} failed: {reply.text}")
            for piece in reply.iter_bytes():
                file.write(piece)
        unfinished.rename(to)
    except httpx.TransportError as error:
        raise ServiceUnreachable(f"the export of {name} was interrupted: {why_unreachable(error)}") from error
    except OSError as error:
        raise Failure(f"cannot write {to}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return to.stat().st_size


@app.command("list")
def list_(service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """List base models and trained models."""
    columns = map(whole, ("MODEL", "BACKEND", "STEP", "PROMOTED AS"))
    print_list(service.call("GET", "/models")["items"], as_json, "no models", columns, _model_row)


@app.command()
def show(model: Model, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show a model's checkpoints."""
    details = service.call("GET", _path(model))
    columns = map(whole, ("STEP", "SUCCESS", "BEST", "TAUGHT BY", "RUN", "CREATED", "PROMOTED AS"))
    print_json(details) if as_json else results.print(table(columns, map(_checkpoint_row, details["checkpoints"])))


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
    prompt: PromptOption = None,
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Base model: it is promoted itself, as step 0 of a new model.")
    ] = None,
    end_release: EndRelease = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Promote a checkpoint, with its prompt, to a name in its project. To roll back, promote the older one again."""
    if step is None:
        whole_model = {"checkpoints": []} if base else service.call("GET", _path(model))
        step = max((checkpoint["step"] for checkpoint in whole_model["checkpoints"]), default=0)
    request = {
        "step": step,
        "if_better_than" if if_better else "as": to,
        "end_release": end_release,
        **prompt_field(prompt),
        **({"base_model": base} if base else {}),
    }
    reply = service.call("POST", f"{_path(model)}/promote", json=request)
    if if_better:
        decided = watch_evaluation(service, reply["evaluation_id"])
        print_json(decided) if as_json else _print_trial(decided, to)
        raise typer.Exit(0 if trial_decision(decided) == "promote" else 1)
    print_warnings(reply)
    print_result(reply, as_json, f"{reply['name']} is now {served(_checkpoint(reply), reply['prompt'])}")


def _print_trial(evaluation: Json, to: str) -> None:
    if trial_decision(evaluation) is None:
        results.print(f"evaluation {evaluation['evaluation_id']} is {evaluation['status']}: {evaluation['error']}")
        return
    trial, interval = evaluation["report"]["trial"], evaluation["report"]["models"][1]["difference"]["success"]
    sentences = {
        "promote": f"promoted: it is better than what {to} was",
        "refuse": f"not promoted: that it is better by {trial['margin']:.0%} is ruled out",
        "undecided": "not promoted: the scenarios did not suffice",
        "overtaken": f"not promoted: {to} was given to another checkpoint meanwhile, or has a live release",
    }
    difference = ""
    if interval is not None:
        mean, low, high = (signed(100 * interval[name], 1) for name in ("mean", "low", "high"))
        difference = f", difference {mean} points [{low}, {high}]"
    say(f"{sentences[trial['decision']]} ({counted(trial['pairs'], 'scenario')}{difference})")


@app.command()
def history(
    name: Annotated[str, typer.Argument(metavar="PROJECT/NAME")], service: ServiceAt = HERE, as_json: AsJson = False
) -> None:
    """Show all checkpoints that a name was promoted to, newest first."""
    promotions = service.call("GET", f"/promotions/{_model(name)}")["items"]
    lines = (
        f"{promotion['created_at'][:19]}  {served(_checkpoint(promotion), promotion['prompt'])}  "
        f"by {promotion['actor']}"
        for promotion in promotions
    )
    print_result(promotions, as_json, *lines)


@app.command()
def export(
    model: Model,
    to: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="The tar file to write.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint. \\[default: the newest]")] = None,
    service: ServiceAt = HERE,
) -> None:
    """Write a checkpoint to a tar file: safetensors in the Hugging Face or peft layout, with a manifest of hashes."""
    say(f"{to}: {_export(service.within(PATIENCE_S), model, step, to)} bytes")


@app.command()
def push(
    model: Model,
    to: Annotated[PushTarget, typer.Option(help="A Hugging Face repository, or an S3-compatible store.")],
    repo: Annotated[str | None, typer.Option(metavar="NAMESPACE/NAME", help="The repository, with --to hf.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Prefix below that of the project, with --to s3. \\[default: NAME/STEP]")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint. \\[default: the newest]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Push a checkpoint to a repository or store that the operator of the service allows."""
    named = {"to": to.value, "repo": repo, "prefix": prefix, "step": step}
    request = {name: value for name, value in named.items() if value is not None}
    pushed = service.within(_PUSH_TIMEOUT_S).call("POST", f"{_path(model)}/push", json=request)
    at = f" at {pushed['revision']}" if pushed["revision"] else ""
    print_result(pushed, as_json, f"{pushed['model']}@{pushed['step']} is now in {pushed['url']}{at}")


@app.command()
def delete(
    model: Model,
    step: Annotated[int, typer.Option(min=0, help="Step of the checkpoint.")],
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete a checkpoint permanently. The newest, the best one of a run and promoted ones cannot be deleted,
    nor those of a live release."""
    remaining = service.call("DELETE", f"{_path(model)}/checkpoints/{step}")
    steps = ", ".join(str(checkpoint["step"]) for checkpoint in remaining["checkpoints"])
    print_result(remaining, as_json, f"{model}@{step} is deleted; remaining steps: {steps}")


def _checkpoint(promotion: Json) -> str:
    return f"{promotion['model']}@{promotion['step']}"


def _path(name: str) -> str:
    return f"/models/{_model(name)}"


def _model(name: str) -> ModelName:
    return named_model(name, ", and the step as --step")


def _model_row(model: Json) -> tuple[str, ...]:
    step = "-" if model["step"] is None else str(model["step"])
    return model["model"], model["backend"], step, " ".join(model["promoted_as"])


def _checkpoint_row(checkpoint: Json) -> tuple[str, ...]:
    return (
        str(checkpoint["step"]),
        percent(checkpoint["success"]),
        "best" if checkpoint["is_best"] else "",
        _taught_by(checkpoint["metrics"]),
        checkpoint["run_id"] or "-",
        (checkpoint["created_at"] or "-")[:19],
        " ".join(checkpoint["promoted_as"]),
    )


def _taught_by(metrics: Json) -> str:
    """Return how many of the groups of a step had rewards that differ."""
    trainable, submitted = (metrics.get(f"num_groups_{name}") for name in ("trainable", "submitted"))
    return "-" if trainable is None or submitted is None else f"{trainable:.0f} of {submitted:.0f} groups"
