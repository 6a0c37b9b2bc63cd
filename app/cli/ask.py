"""`learnloop ask`: gives a trained agent one task."""

from typing import Annotated, Any

import typer
from rich.text import Text

from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import model_option, run_option
from learnloop_service.app.cli.run_request import overlay, parse_settings
from learnloop_service.app.cli.task_options import takes_task_fields, task_of
from learnloop_service.app.cli.terminal import Failure, plain, print_json, results, say

_Question = Annotated[str | None, typer.Argument(help="The question, for an agent that answers questions.")]
_Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FIELD=VALUE",
        help="A field of the whole task, for any environment; repeatable. `GET /environments` lists them.",
    ),
]
_Run = Annotated[str | None, run_option("--run", "Ask the agent trained by this run.")]
_Model = Annotated[str | None, model_option("Ask this model, such as learnloop/tiny.")]
_Checkpoint = Annotated[int | None, typer.Option(help="Step of the checkpoint. \\[default: the best]")]
_Environment = Annotated[str | None, typer.Option(help="Environment of the task. \\[default: that of the run]")]
_Inbox = Annotated[str | None, typer.Option(help="Name of an imported inbox.")]


@takes_task_fields
def ask(
    question: _Question = None,
    input: _Input = None,
    run: _Run = None,
    model: _Model = None,
    checkpoint: _Checkpoint = None,
    environment: _Environment = None,
    inbox: _Inbox = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Give a trained agent, or a base model, one task: a question, or the fields that its environment takes.

    Exits with 1 if the agent gives no answer.
    """
    if (run is None) == (model is None):
        raise typer.BadParameter("give exactly one of them", param_hint="--run / --model")
    request = overlay(
        {},
        {
            "question": question,
            "run_id": run,
            "model": model,
            "checkpoint": checkpoint,
            "environment.name": environment or ("email_search" if inbox else None),
            "environment.config.inbox": inbox,
            **task_of(fields),
            **{f"input.{name}": value for name, value in parse_settings(input or ()).items()},
        },
    )
    reply = service.ask(request)
    print_json(reply) if as_json else _print(reply, service.url)
    if not (reply["email"] or reply["success"]):
        raise Failure(reply.get("note") or "the agent gave no answer")


def _print(reply: dict[str, Any], url: str) -> None:
    _print_email(reply["email"]) if reply["email"] else _print_answer(reply)
    if reply.get("why_no_success"):
        results.print(plain(f"no success  {reply['why_no_success']}"))
    results.print(f"model       {reply['model']}, step {reply['step']}")
    say(f"trajectory  {url}/trajectories/{reply['trajectory_id']}")


def _print_answer(reply: dict[str, Any]) -> None:
    results.print(plain(reply["answer"], "bold") if reply["answer"] is not None else "(no answer)")
    if reply["expected"] is not None:
        results.print(_mark(reply))
        results.print(plain(f"expected    {reply['expected']}"))
    results.print(plain(f"sources     {', '.join(reply['source_ids']) or '-'}"))
    if reply["success"] and reply.get("note"):
        results.print(plain(f"note        {reply['note']}"))


def _mark(reply: dict[str, Any]) -> Text:
    """Return whether the answer is right."""
    if not reply["correct"]:
        return Text("wrong", style="red")
    if reply["sources_correct"] is False:
        return Text("right answer, wrong source", style="red")
    return Text("right", style="green")


def _print_email(email: dict[str, Any]) -> None:
    results.print(plain(email["subject"], "bold"))
    results.print(plain(f"\n{email['body']}\n"))
    results.print(plain(f"cites       {', '.join(email['citations']) or '-'}"))
