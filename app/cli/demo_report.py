"""What `learnloop demo` tells a newcomer: what is going on, what came of it, and where to look."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.cli.charts import duration, figure
from app.cli.held_out import held_out_table

Json = Any

_EMAIL_AGENT = (
    "A language model of a few million parameters, small enough for this processor, works as an email agent: "
    "it gets a question and a mailbox, and has to search, open mails, and answer with the mail that proves it. "
    "It tries every question several times; a judge compares each answer with the known one, and the tries that "
    "did better than the others at the same question are made more likely (GRPO). "
    "Before and after the training it is examined on mailboxes, names and values that it never saw."
)
_ANY_AGENT = (
    "A language model of a few million parameters, small enough for this processor, works as the agent of the "
    "environment {environment}. It tries every task several times; a judge scores the tries, and those that did "
    "better than the others at the same task are made more likely (GRPO). "
    "Before and after the training it is examined on tasks that it never saw."
)


def print_introduction(console: Console, environment: str, iterations: int) -> None:
    """What is trained, on what, judged how."""
    text = _EMAIL_AGENT if environment == "email_search" else _ANY_AGENT.format(environment=environment)
    console.print(f"Learnloop demo: {iterations} iterations of reinforcement learning on this machine", style="bold")
    console.print(Padding(text, (0, 0, 1, 2), expand=False))


def print_figures(console: Console, document: Json) -> None:
    """The table of before and after, and how long it took."""
    console.print()
    console.print(held_out_table(document))
    speed = f"{figure(document['rollouts_per_s'], 1)} tries/s, {document['tokens_per_s'] or 0:,.0f} tokens/s"
    console.print(
        f"\n{document['iterations']} iterations, {document['rollouts']:,} tries in {duration(document['seconds'])}: "
        f"{speed}, with training and tools. In all {duration(document['total_seconds'])}."
    )


def print_answers(console: Console, document: Json) -> None:
    """The same questions, answered by the base and by the trained agent."""
    if not document["answers"]:
        return
    console.print("\nThe same held-out questions, asked through POST /ask", style="bold")
    for asked in document["answers"]:
        console.print(f"\n  {asked['question']}")
        table = Table.grid(padding=(0, 2))
        for who in ("base", "trained"):
            answer = asked[who]
            table.add_row(f"    {who}", _mark(answer["correct"]), answer["answer"] or "(no answer)", _sources(answer))
        expected = asked["expected"]
        if "answer" in expected:
            known = f"from {', '.join(expected.get('source_ids', ()))}" if expected.get("source_ids") else ""
            table.add_row("    known", "", Text(expected["answer"], style="dim"), Text(known, style="dim"))
        console.print(table)


def _mark(correct: bool | None) -> Text:
    if correct is None:
        return Text("")
    return Text("right", style="green") if correct else Text("wrong", style="red")


def _sources(answer: Json) -> str:
    return f"from {', '.join(answer['source_ids'])}" if answer["source_ids"] else "no source"


def print_links(console: Console, document: Json, url: str | None, data_dir: Path) -> None:
    """Where to look at it all: the service at `url`, or the command that starts it again."""
    if url is None:
        console.print("\nEvery try is kept. To look at them, start the service again:", style="bold")
        console.print(f"  learnloop serve --data-dir {data_dir}", soft_wrap=True)
        url = "http://127.0.0.1:8000"
    else:
        console.print("\nEvery try is kept:", style="bold")
    run = f"{url}/runs/{document['run_id']}"
    for what, link in (
        ("the run", run),
        ("its tries", f"{run}/trajectories?split=test"),
        ("the API", f"{url}/docs"),
    ):
        console.print(f"  {what:<12}{link}", soft_wrap=True)
    if document["answers"]:
        trajectory = document["answers"][0]["trained"]["trajectory_id"]
        console.print(f"  {'one answer':<12}{url}/trajectories/{trajectory}", soft_wrap=True)
