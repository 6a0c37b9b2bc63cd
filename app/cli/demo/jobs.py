"""The parts of a demo that depend on its environment: introduction, number of iterations, examples."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.demo.questions import examples as question_examples
from learnloop_service.app.cli.demo.questions import print_answers
from learnloop_service.app.cli.demo.sales import examples as sales_examples
from learnloop_service.app.cli.demo.sales_report import print_examples as print_sales
from learnloop_service.environment.json_type import Json


@dataclass(frozen=True, slots=True)
class DemoJob:
    """The demo of one environment."""

    introduction: str
    """Text about the agent's task, its means, and how it is judged."""
    iterations: int
    """Default number of iterations."""
    examples: Callable[[Service, Json], dict[str, Json]]
    """Returns the part of the document that shows the base model and the trained agent at work."""
    print_examples: Callable[[Console, Json], None]
    """Prints that part of the document."""


_COMPARED = (
    "training makes those rollouts more likely that did better than the others on the same {task} (GRPO). "
    "Before and after training the agent is evaluated on {unseen} that it has never seen."
)
_SMALL = "A language model with a few million parameters, small enough for this CPU, acts as "
_EMAIL = DemoJob(
    introduction=_SMALL + "an email agent: given a question and a mailbox, it has to search, open emails, and answer "
    "with the email that proves it. It attempts every question several times, a judge compares each answer with the "
    "known one, and " + _COMPARED.format(task="question", unseen="mailboxes, names and values"),
    iterations=14,
    examples=question_examples,
    print_examples=print_answers,
)
_SALES = DemoJob(
    introduction=_SMALL + "a sales agent: given a prospect and a graph of facts, it has to follow the edges from the "
    "prospect's job to a product that helps, read what it will cite, and write the email. It writes to every prospect "
    "several times, a rule-based judge checks whether each email is based on what the agent read, and "
    + _COMPARED.format(task="prospect", unseen="graphs, names and facts")
    + " One graph is used in every iteration; its nodes get scores from the rewards of the emails that cite them.",
    iterations=14,
    examples=sales_examples,
    print_examples=print_sales,
)
_ANY = DemoJob(
    introduction=_SMALL + "the agent of the environment {environment}. It attempts every task several times, a "
    "judge scores the rollouts, and " + _COMPARED.format(task="task", unseen="tasks"),
    iterations=14,
    examples=question_examples,
    print_examples=print_answers,
)
_JOBS = {"email_search": _EMAIL, "sales_email": _SALES}


def demo_job(environment: str) -> DemoJob:
    """Return the demo of that environment, or a generic one for environments from other packages."""
    return _JOBS.get(environment, _ANY)
