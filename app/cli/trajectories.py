"""`learnloop trajectories`: what an agent did, and its score and reward."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from learnloop_service.app.cli.charts import figure
from learnloop_service.app.cli.client import HERE, ServiceAt, explained_if_missing
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import plain, print_result
from learnloop_service.app.cli.what_if import turn_values, what_if
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, in_words

app = typer.Typer(no_args_is_help=True, help="Show the records of rollouts, and continue them.")

app.command("what-if")(what_if)
app.command("turn-values")(turn_values)

_MOST = 2_000
"""Maximum number of characters shown of a message, without --full."""


@app.callback()
def trajectories() -> None:
    """Show the records of rollouts."""


@app.command()
def show(
    trajectory_id: Annotated[str, typer.Argument(metavar="TRAJECTORY_ID")],
    full: Annotated[bool, typer.Option("--full", help="Show long messages in full.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Show a trajectory: the conversation with its tool calls, the judge's score and why, reward and advantage."""
    missing = f"there is no trajectory {trajectory_id!r}; GET /runs/RUN_ID/trajectories lists those of a run"
    with explained_if_missing(missing):
        trajectory = service.trajectory(trajectory_id)
    print_result(trajectory, as_json, *_lines(trajectory, None if full else _MOST))


def _lines(trajectory: Json, most: int | None) -> Iterator[Text]:
    iteration = f", iteration {trajectory['iteration']}" if trajectory["iteration"] is not None else ""
    of_run = f" of run {trajectory['run_id']}" if trajectory["run_id"] else ""
    yield plain(f"trajectory {trajectory['id']}{of_run}{iteration}", "bold")
    yield plain(
        f"{trajectory['kind']}, {trajectory['split']}, {trajectory['mode']}, by {trajectory['model']}, "
        f"scenario {trajectory['scenario_id']}"
    )
    tokens = f"{trajectory['prompt_tokens']:,} prompt and {trajectory['completion_tokens']:,} sampled tokens"
    yield plain(f"{counted(trajectory['turns'], 'turn')}, {tokens}, {trajectory['seconds']:.1f} s")
    for message in trajectory["messages"]:
        yield Text()
        yield from _message(message, most)
    for number, history in enumerate(trajectory.get("additional_histories", ()), 2):
        yield Text()
        yield plain(f"history {number}", "bold")
        for message in history["messages"]:
            yield Text()
            yield from _message(message, most)
    yield Text()
    if ending := trajectory["outcome"].get("finish"):
        yield plain(f"ended       {in_words(str(ending))}")
    yield plain(f"outcome     {_json(trajectory['outcome'])}")
    if trajectory["error"]:
        yield plain(f"failed      {trajectory['error']}", "red")
    why = f": {trajectory['why_no_success']}" if trajectory.get("why_no_success") else ""
    yield plain(f"success     {_truth(trajectory['success'])}{why}")
    yield plain(f"score       {figure(trajectory['score'])}{_parts(trajectory['score_parts'])}")
    if trajectory["score_explanation"]:
        yield plain(f"judge       {trajectory['score_explanation']}")
    yield plain(f"reward      {figure(trajectory['reward'])}{_parts(trajectory['reward_parts'])}")
    yield plain(f"advantage   {figure(trajectory['advantage'])}")


def _message(message: Json, most: int | None) -> Iterator[Text]:
    name = f" {message['name']}" if message.get("name") else ""
    yield plain(f"{message['role']}{name}", "cyan")
    if content := _content(message.get("content")):
        yield plain(f"  {_cut(content, most)}")
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield plain(f"  {function.get('name')}({_cut(function.get('arguments') or '', most)})", "green")


def _content(content: Json) -> str:
    """Return a message's text, which can be split into parts."""
    if isinstance(content, list):
        return "\n  ".join(str(part.get("text", _json(part))) for part in content)
    return "" if content is None else str(content).replace("\n", "\n  ")


def _cut(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters; --full shows all)"


def _parts(parts: Json) -> str:
    return f"   ({', '.join(f'{name} {value:.2f}' for name, value in parts.items())})" if parts else ""


def _truth(value: bool | None) -> str:
    return {None: "not known", True: "yes", False: "no"}[value]


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
