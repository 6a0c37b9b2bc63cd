"""`learnloop trajectories what-if` and `turn-values`: continue a rollout from a turn, and find the decisive turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import figure, percent
from learnloop_service.app.cli.client import HERE, Service, ServiceAt, explained_if_missing
from learnloop_service.app.cli.evaluations import Prompted, chosen_models, watch_evaluation
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import model_option
from learnloop_service.app.cli.terminal import plain, print_result, print_warnings
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed

TrajectoryId = Annotated[str, typer.Argument(metavar="TRAJECTORY_ID")]
_Search = Annotated[
    Literal["bisect", "all"] | None,
    typer.Option(help="Instead of --turn: look for the turn that decided the rollout."),
]
_Model = Annotated[
    list[str] | None,
    model_option("Model that continues, as for `learnloop eval`. Repeatable. \\[default: the checkpoint that made it]"),
]


def what_if(
    trajectory_id: TrajectoryId,
    turn: Annotated[int | None, typer.Option(min=1, help="First turn that is sampled anew, from 1.")] = None,
    search: _Search = None,
    model: _Model = None,
    prompted: Prompted = None,
    samples: Annotated[int | None, typer.Option(min=1, max=64, help="Continuations by each model.")] = None,
    seed: Annotated[
        str | None, typer.Option(help="Seed of sampling, or `own`: that of the rollout, which is then made again.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Sampling temperature.")] = None,
    edit: Annotated[
        str | None,
        typer.Option(metavar="N=TEXT", help="New text of message N, from 0. TEXT can be @FILE."),
    ] = None,
    edit_tool: Annotated[
        str | None,
        typer.Option(metavar="CALL_ID=TEXT", help="New text of the result of a tool call. TEXT can be @FILE."),
    ] = None,
    append: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Message of the user before the turn. TEXT can be @FILE.")
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Continue a recorded rollout from a turn on, and compare how it ends. Ctrl-C stops watching only."""
    request = {
        "turn": turn,
        "search": search,
        "samples": samples,
        "seed": int(seed) if seed is not None and seed.isdecimal() else seed,
        "temperature": temperature,
        "models": chosen_models(model, prompted),
        "edit": _edit(edit, edit_tool, append),
    }
    accepted = _start(service, trajectory_id, request)
    print_warnings(accepted)
    ended = watch_evaluation(service, accepted["evaluation_id"])
    values = _turn_values(service, trajectory_id) if search else None
    lines = [*_report_lines(ended), *(_value_lines(values) if values else ())]
    print_result(ended if values is None else ended | {"turn_values": values}, as_json, *lines)
    raise typer.Exit(0 if ended["status"] == "completed" else 1)


def turn_values(trajectory_id: TrajectoryId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show which turn decided a rollout, by the continuations of its what-ifs."""
    values = _turn_values(service, trajectory_id)
    print_result(values, as_json, *_value_lines(values))


def _turn_values(service: Service, trajectory_id: str) -> Json:
    return service.call("GET", f"/trajectories/{segment(trajectory_id)}/turn-values")


def _start(service: Service, trajectory_id: str, request: Json) -> Json:
    body = {name: value for name, value in request.items() if value is not None}
    with explained_if_missing(f"there is no trajectory {trajectory_id!r}"):
        return service.call("POST", f"/trajectories/{segment(trajectory_id)}/what-if", json=body)


def _edit(message: str | None, tool_result: str | None, append: str | None) -> Json:
    """Return the edit in a request's form; None without one."""
    if sum(edit is not None for edit in (message, tool_result, append)) > 1:
        raise typer.BadParameter("give one of --edit, --edit-tool and --append")
    if append is not None:
        return {"append": _text(append)}
    target, _, content = (message or tool_result or "").partition("=")
    if tool_result is not None:
        return {"tool_result": target, "content": _text(content)}
    if message is None:
        return None
    if not target.isdecimal():
        raise typer.BadParameter(f"--edit takes the number of a message, as in 1=TEXT, not {target!r}")
    return {"message": int(target), "content": _text(content)}


def _text(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {value[1:]!r}: {error}") from error


def _report_lines(ended: Json) -> Iterator[Text]:
    yield plain(f"what-if {ended['evaluation_id']}: {ended['status']}", "bold")
    if ended["error"]:
        yield plain(f"  {ended['error']}", "red")
    report = (ended["report"] or {}).get("what_if")
    if report is None:
        return
    original = report["original"]
    ending = {None: "ended", True: "succeeded", False: "failed"}[original["success"]]
    reward = figure(original["reward"])
    yield plain(f"the rollout itself {ending} after {counted(original['turns'], 'turn')}, reward {reward}")
    for continuation in report["continuations"]:
        yield Text()
        yield plain(f"from turn {continuation['turn']}, {continuation['label']}: {_share(continuation)}", "bold")
        yield plain(f"  reward {figure(continuation['reward'])}, {figure(continuation['turns'])} turns")
        for action in continuation["next"]:
            same = ", as the rollout did" if action["is_original"] else ""
            yield plain(f"  {action['count']:>3} x {action['action']}  ({action['successes']} succeeded{same})")


def _share(figures: Json) -> str:
    if figures["success"] is None:
        return "none was judged"
    interval = figures["success"]
    ends = f"{percent(interval['low'])} to {percent(interval['high'])}"
    return f"{percent(interval['mean'])} of {figures['count']} succeed [{ends}]"


def _value_lines(values: Json) -> Iterator[Text]:
    yield Text()
    yield plain(values["text"], "bold")
    credits = {turn["turn"]: turn["points"] for turn in values["credits"]}
    for value in values["values"]:
        credit = credits.get(value["turn"])
        change = f"   the turn changes it by {_points(credit)}" if credit is not None else ""
        yield plain(f"  before turn {value['turn']}: {_share(value)}{change}")
    if values["success"] is not None:
        yield plain(f"  the rollout itself: {'success' if values['success'] else 'failure'}")


def _points(interval: Json) -> str:
    return f"{signed(interval['mean'])} points [{signed(interval['low'])}, {signed(interval['high'])}]"
