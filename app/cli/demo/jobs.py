"""What a demo does in its own way for each kind of job: what it says, for how long it trains, what it shows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from app.cli.client import Service
from app.cli.demo.questions import examples as question_examples
from app.cli.demo.questions import print_answers
from app.cli.demo.sales import examples as sales_examples
from app.cli.demo.sales_report import print_examples as print_sales

Json = Any


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One kind of job."""

    introduction: str
    """What the agent does, on what, and how it is judged."""
    iterations: int
    """How long a demo trains if nobody says."""
    examples: Callable[[Service, Json], dict[str, Json]]
    """The part of the document that shows a completed run's base and trained agent at work."""
    print_examples: Callable[[Console, Json], None]
    """Shows that part of a document."""


_COMPARED = (
    "the tries that did better than the others at the same {task} are made more likely (GRPO). "
    "Before and after the training it is examined on {unseen} that it never saw."
)
_SMALL = "A language model of a few million parameters, small enough for this processor, works as "
_EMAIL = DemoJob(
    introduction=_SMALL + "an email agent: it gets a question and a mailbox, and has to search, open mails, and "
    "answer with the mail that proves it. It tries every question several times; a judge compares each answer with "
    "the known one, and " + _COMPARED.format(task="question", unseen="mailboxes, names and values"),
    iterations=14,
    examples=question_examples,
    print_examples=print_answers,
)
_SALES = DemoJob(
    introduction=_SMALL + "a sales agent: it gets a prospect and a graph of facts, and has to walk from the "
    "prospect's job to a product that helps, read what it will cite, and write the email. It tries every prospect "
    "several times; a judge without a model checks whether each email rests on what was read, and "
    + _COMPARED.format(task="prospect", unseen="graphs, names and facts")
    + " The nodes of one graph that it returns to are scored by what emails that cite them earn.",
    iterations=14,
    examples=sales_examples,
    print_examples=print_sales,
)
_ANY = DemoJob(
    introduction=_SMALL + "the agent of the environment {environment}. It tries every task several times; a judge "
    "scores the tries, and " + _COMPARED.format(task="task", unseen="tasks"),
    iterations=14,
    examples=question_examples,
    print_examples=print_answers,
)
_JOBS = {"email_search": _EMAIL, "sales_email": _SALES}


def demo_job(environment: str) -> DemoJob:
    """The job of that environment. One that nobody described is introduced by its name."""
    return _JOBS.get(environment, _ANY)
