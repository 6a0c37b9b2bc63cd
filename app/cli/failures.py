"""`learnloop failures`: the tasks that fail, by the pattern of their failures."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import bar, percent
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import run_named
from learnloop_service.app.cli.terminal import plain, print_result
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

_ROLLOUTS = 2
"""Number of rollouts that are printed for each pattern."""
_LOST = 10
"""Number of lost tasks that are printed."""
_Id = Annotated[
    str,
    typer.Argument(
        metavar="EVALUATION|RUN", help="Id of an evaluation or a run. Of a run also its last characters, or `latest`."
    ),
]
_Before = Annotated[
    str | None,
    typer.Option(
        metavar="EVALUATION|ITERATION",
        help="What to compare with. \\[default: the evaluation's first model, or the run's first evaluation]",
    ),
]
_Model = Annotated[str | None, typer.Option(help="Label of the evaluation's model. \\[default: its last one]")]
_Iteration = Annotated[int | None, typer.Option(min=0, help="Iteration of the run. \\[default: the newest evaluated]")]
_Split = Annotated[str | None, typer.Option(help="Split of the run's rollouts. \\[default: validation]")]
_Mode = Annotated[str | None, typer.Option(help="sampled or greedy rollouts of the run. \\[default: sampled]")]


def failures(
    id: _Id,
    before: _Before = None,
    model: _Model = None,
    iteration: _Iteration = None,
    split: _Split = None,
    mode: _Mode = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Count the tasks that fail by the pattern of their failures, now and before."""
    evaluation = service.call("GET", f"/evaluations/{segment(id)}", accept=(404,))
    subject = {"evaluation": id} if "evaluation_id" in evaluation else {"run": run_named(service, id)}
    choices = {"model": model, "iteration": iteration, "split": split, "mode": mode, "before": before}
    failing = service.call("GET", "/failures", params=subject | choices)
    print_result(failing, as_json, *_lines(failing))


def _lines(failing: Json) -> Iterator[Text]:
    now, before = failing["now"], failing["before"]
    for when, side in (("before", before), ("now", now)) if before else (("now", now),):
        yield plain(f"{when:6}  {_count(side['solved'], side['tasks'])} solved: {_named(side)}", "bold")
    if now["tasks"] < now["all_tasks"]:
        yield plain(f"        only the {counted(now['tasks'], 'task')} that both have are compared")
    sentences = {pattern["id"]: pattern["sentence"] for pattern in failing["patterns"]}
    for pattern in failing["patterns"]:
        yield plain(f"{pattern['sentence']}  ({pattern['id']})", "bold")
        if before:
            yield plain(f"   before  {_count(pattern['before'], now['tasks'])}{_became(pattern, sentences)}")
        yield plain(f"   now     {_count(pattern['now'], now['tasks'])}")
        for rollout in (pattern["rollouts"] or pattern["before_rollouts"])[:_ROLLOUTS]:
            reasons = "; ".join(rollout[name] for name in ("why", "reason") if rollout[name])
            yield plain(f"      {rollout['trajectory_id']}  {rollout['scenario_id']}  {reasons}".rstrip())
    if failing["lost_tasks"]:
        yield plain(f"{counted(failing['lost_tasks'], 'task')} solved before and failing now", "bold")
    for lost in failing["lost"][:_LOST]:
        yield plain(f"   {lost['trajectory_id']}  {lost['scenario_id']}  {sentences[lost['pattern']]}")


def _named(side: Json) -> str:
    if side["evaluation_id"]:
        return f"{side['model']} in evaluation {side['evaluation_id']}"
    return f"run {side['run_id']}, iteration {side['iteration']}, {side['split']}, {side['mode']}"


def _count(counted_tasks: Json, of: int) -> str:
    tasks, share = counted_tasks["tasks"], counted_tasks["share"]
    interval = f"[{100 * share['low']:.0f}, {100 * share['high']:.0f}]"
    return f"{bar(tasks, of)} {tasks:>3} of {counted(of, 'task')}, {percent(share['mean'])} {interval}"


def _became(pattern: Json, sentences: Json) -> str:
    """Return what the tasks became that no longer have the pattern."""
    others = [
        (became["pattern"], became["tasks"]) for became in pattern["became"] if became["pattern"] != pattern["id"]
    ]
    words = [f"{tasks} {sentences[id] if id else 'solved'}" for id, tasks in others]
    return f"; became: {', '.join(words)}" if words else ""
