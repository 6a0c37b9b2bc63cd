"""`learnloop ask`."""

from typing import Annotated

import typer

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.run_request import overlay
from app.cli.terminal import print_json, results


def ask(
    question: str,
    run: Annotated[str | None, typer.Option(metavar="RUN_ID", help="Ask the agent that this run trained.")] = None,
    model: Annotated[str | None, typer.Option(help="Ask this model, such as learnloop/tiny.")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="The model's step.  \\[default: the best]")] = None,
    environment: Annotated[str | None, typer.Option(help="The kind of job. \\[default: the run's]")] = None,
    inbox: Annotated[str | None, typer.Option(help="An imported inbox by name.")] = None,
    inbox_address: Annotated[str | None, typer.Option(help="Whose inbox it is.")] = None,
    query_date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Today, for the agent.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask a trained agent, or a base model, a question."""
    if (run is None) == (model is None):
        raise typer.BadParameter("name one of them", param_hint="--run / --model")
    request = overlay(
        {"question": question},
        {
            "run_id": run,
            "model": model,
            "checkpoint": checkpoint,
            "environment.name": environment or ("email_search" if inbox else None),
            "environment.config.inbox": inbox,
            "inbox_address": inbox_address,
            "query_date": query_date,
        },
    )
    with Service(url) as service:
        reply = service.ask(request)
    if as_json:
        print_json(reply)
        return
    results.print(reply["answer"] if reply["answer"] is not None else "(no answer)", style="bold")
    results.print(f"sources  {', '.join(reply['source_ids']) or '-'}")
    results.print(f"model    {reply['model']}, step {reply['step']}")
    results.print(f"how      {service.url}/trajectories/{reply['trajectory_id']}", soft_wrap=True)
