"""The parts of a demo that depend on its environment: introduction, number of iterations, examples."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from learnloop_service.app.cli.client import Service
from learnloop_service.environment.json_type import Json


@dataclass(frozen=True, slots=True)
class DemoJob:
    """The demo of one environment."""

    introduction: str
    """Text about the agent's task, its means, and how it is judged; `{environment}` stands for the name."""
    iterations: int
    """Default number of iterations."""
    examples: Callable[[Service, Json], dict[str, Json]]
    """Returns the part of the document that shows the base model and the trained agent at work."""
    print_examples: Callable[[Console, Json], None]
    """Prints that part of the document."""


ACTS_AS = "A language model with a few million parameters, small enough for this CPU, acts as "
"""Beginning of an introduction."""


def compared(task: str, unseen: str) -> str:
    """Return what an introduction says of training and evaluation, as the end of a sentence and another one."""
    return (
        f"training makes those rollouts more likely that did better than the others on the same {task} (GRPO). "
        f"Before and after training the agent is evaluated on {unseen} that it has never seen."
    )
