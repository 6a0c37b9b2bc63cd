"""The part of a demo that shows questions answered by the base model and by the trained agent."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.demo.held_out_tasks import ask_both
from learnloop_service.app.cli.demo.job import ACTS_AS, DemoJob, compared
from learnloop_service.app.cli.terminal import plain
from learnloop_service.environment.json_type import Json

_TASK_FIELDS = ("question", "inbox_address", "query_date")


def examples(service: Service, run: Json) -> dict[str, Json]:
    """Return `answers`: held-out questions with the answers of both agents, marked right or wrong."""
    return {
        "answers": [
            {
                "scenario_id": answered.scenario["id"],
                **answered.task,
                "expected": answered.scenario["reference"],
                "base": _marked(answered.base, answered.scenario["reference"]),
                "trained": _marked(answered.trained, answered.scenario["reference"]),
            }
            for answered in ask_both(service, run, _TASK_FIELDS)
        ]
    }


def _marked(reply: Json, reference: Mapping[str, Json]) -> Json:
    """Return an answer with `correct`: whether its text and sources match the reference, or None without one."""
    from learnloop_service.judges.reference import same_answer

    correct: bool | None = None
    if isinstance(reference.get("answer"), str):
        correct = (
            bool(reply["answer"])
            and same_answer(reply["answer"], reference["answer"])
            and set(reply["source_ids"]) == set(reference.get("source_ids", ()))
        )
    return {
        "answer": reply["answer"],
        "source_ids": reply["source_ids"],
        "correct": correct,
        "trajectory_id": reply["trajectory_id"],
        "step": reply["step"],
    }


def print_answers(console: Console, document: Json) -> None:
    """Print the same questions answered by the base model and by the trained agent."""
    if not document["answers"]:
        return
    console.print("\nThe same held-out questions, asked through POST /ask", style="bold")
    for example in document["answers"]:
        console.print(plain(f"\n  {example['question']}"))
        table = Table.grid(padding=(0, 2))
        for who in ("base", "trained"):
            answer = example[who]
            text = plain(answer["answer"] or "(no answer)")
            table.add_row(f"    {who}", _mark(answer["correct"]), text, plain(_sources(answer)))
        expected = example["expected"]
        if "answer" in expected:
            sources = f"from {', '.join(expected.get('source_ids', ()))}" if expected.get("source_ids") else ""
            table.add_row("    expected", "", plain(expected["answer"], "dim"), plain(sources, "dim"))
        console.print(table)


def _mark(correct: bool | None) -> Text:
    if correct is None:
        return Text("")
    return Text("right", style="green") if correct else Text("wrong", style="red")


def _sources(answer: Json) -> str:
    return f"from {', '.join(answer['source_ids'])}" if answer["source_ids"] else "no source"


EMAIL_SEARCH = DemoJob(
    introduction=ACTS_AS + "an email agent: given a question and a mailbox, it has to search, open emails, and answer "
    "with the email that proves it. It attempts every question several times, a judge compares each answer with the "
    "known one, and " + compared(task="question", unseen="mailboxes, names and values"),
    iterations=14,
    examples=examples,
    print_examples=print_answers,
)
