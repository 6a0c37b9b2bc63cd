"""Demos by the name of their environment.

A package adds the demo of its environment with an entry point in the group `learnloop.demos` that has the environment's
name and names a DemoJob. Environments without one have a demo that shows questions and answers, if they have some.
"""

from learnloop_service.app.cli.demo.job import ACTS_AS, DemoJob, compared
from learnloop_service.app.cli.demo.questions import examples, print_answers
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment import plugins

GROUP = "learnloop.demos"
_ANY = DemoJob(
    introduction=ACTS_AS + "the agent of the environment {environment}. It attempts every task several times, a "
    "judge scores the rollouts, and " + compared(task="task", unseen="tasks"),
    iterations=14,
    examples=examples,
    print_examples=print_answers,
)


def demo_job(environment: str) -> DemoJob:
    """Return the demo of that environment, or else a generic one. Raises Failure for one that cannot be loaded."""
    if (point := plugins.registered(GROUP).get(environment)) is None:
        return _ANY
    try:
        job = plugins.load("demo", point)
    except plugins.PluginFault as fault:
        raise Failure(str(fault)) from fault
    if not isinstance(job, DemoJob):
        raise Failure(f"the demo {point.name!r}: {point.value} is not a DemoJob but {job!r}")
    return job
