"""`learnloop ask`: gives a trained agent one task."""

from typing import Annotated, Any

import typer
from rich.text import Text

from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_request import overlay, parse_settings
from learnloop_service.app.cli.terminal import Failure, plain, print_json, results, say

_Question = Annotated[str | None, typer.Argument(help="The question, for an agent that answers questions.")]
_Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FIELD=VALUE",
        help="A field of the task, for any environment; repeatable. `GET /environments` lists them.",
    ),
]
_Run = Annotated[str | None, typer.Option(metavar="RUN_ID", help="Ask the agent trained by this run.")]
_Model = Annotated[str | None, typer.Option(help="Ask this model, such as learnloop/tiny.")]
_Checkpoint = Annotated[int | None, typer.Option(help="Step of the checkpoint. \\[default: the best]")]
_Environment = Annotated[str | None, typer.Option(help="Environment of the task. \\[default: that of the run]")]
_Inbox = Annotated[str | None, typer.Option(help="Name of an imported inbox.")]
_InboxAddress = Annotated[str | None, typer.Option(help="Address of the inbox to search.")]
_QueryDate = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="The date on which the question is asked.")]
_Prospect = Annotated[str | None, typer.Option(help="Person to write to, for an agent that writes emails.")]
_Company = Annotated[str | None, typer.Option(help="Company of the prospect.")]
_Role = Annotated[str | None, typer.Option(help="Job title of the prospect.")]
_Goal = Annotated[str | None, typer.Option(help="What the email should achieve.")]
_Start = Annotated[list[str] | None, typer.Option(metavar="NODE", help="Node of the graph to start from; repeatable.")]
_Graph = Annotated[str | None, typer.Option(metavar="NAME", help="A synthetic graph, such as test.0.17.")]


def ask(
    question: _Question = None,
    task: _Input = None,
    run: _Run = None,
    model: _Model = None,
    checkpoint: _Checkpoint = None,
    environment: _Environment = None,
    inbox: _Inbox = None,
    inbox_address: _InboxAddress = None,
    query_date: _QueryDate = None,
    prospect: _Prospect = None,
    company: _Company = None,
    role: _Role = None,
    goal: _Goal = None,
    start: _Start = None,
    graph: _Graph = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Give a trained agent, or a base model, one task: a question, a prospect to write an email to, or the fields that
    its environment takes.

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
            "inbox_address": inbox_address,
            "query_date": query_date,
            "prospect": prospect,
            "company": company,
            "role": role,
            "goal": goal,
            "start": start or None,
            "graph": graph,
            **{f"input.{name}": value for name, value in parse_settings(task or ()).items()},
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
