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
_HELP = "Id of an evaluation or a run. Of a run also its last characters, or `latest`."
_BEFORE = "What to compare with. \\[default: the evaluation's first model, or the run's first evaluation]"


def failures(
    id: Annotated[str, typer.Argument(metavar="EVALUATION|RUN", help=_HELP)],
    before: Annotated[str | None, typer.Option(metavar="EVALUATION|ITERATION", help=_BEFORE)] = None,
    model: Annotated[str | None, typer.Option(help="Label of the evaluation's model. \\[default: its last]")] = None,
    iteration: Annotated[int | None, typer.Option(min=0, help="Iteration of the run. \\[default: the newest]")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or test. \\[default: validation]")] = None,
    mode: Annotated[str | None, typer.Option(help="sampled or greedy. \\[default: sampled]")] = None,
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
    sides = {side: failing[side] for side in ("before", "now") if failing[side]}
    for when, side in sides.items():
        more = f"; {counted(side['left_out'], 'other task')} left out" if side["left_out"] else ""
        yield plain(f"{when:6}  {_share(side['solved'])} solved: {side['name']} ({side['source']}){more}", "bold")
    sentences = {pattern["id"]: pattern["sentence"] for pattern in failing["patterns"]}
    for pattern in failing["patterns"]:
        yield plain(f"{pattern['sentence']}  ({pattern['id']})", "bold")
        for when in sides:
            became = _became(pattern, sentences) if when == "before" else ""
            yield plain(f"   {when:6}  {_share(pattern[when])}{became}")
        for rollout in pattern["rollouts"][:_ROLLOUTS]:
            reasons = "; ".join(rollout[name] for name in ("why", "reason") if rollout[name])
            yield plain(f"      {rollout['trajectory_id']}  {rollout['scenario_id']}  {reasons}".rstrip())
    if failing["lost_tasks"]:
        yield plain(f"{counted(failing['lost_tasks'], 'task')} solved before and failing now", "bold")
    for lost in failing["lost"][:_LOST]:
        yield plain(f"   {lost['trajectory_id']}  {lost['scenario_id']}  {sentences[lost['pattern']]}")


def _share(share: Json) -> str:
    tasks, interval = counted(share["tasks"], "task"), f"[{100 * share['low']:.0f}, {100 * share['high']:.0f}]"
    return f"{bar(round(100 * share['mean']), 100)} {tasks:>9}, {percent(share['mean'])} {interval}"


def _became(pattern: Json, sentences: Json) -> str:
    """Return what the tasks became that no longer have the pattern."""
    others = [
        (became["pattern"], became["tasks"]) for became in pattern["became"] if became["pattern"] != pattern["id"]
    ]
    words = [f"{tasks} {sentences[id] if id else 'solved'}" for id, tasks in others]
    return f"; became: {', '.join(words)}" if words else ""
