"""A hash of the code that decides a judge's verdicts."""

from learnloop_service.environment import plugins
from learnloop_service.judges.registry import GROUP
from learnloop_service.training.source_code import source_hash


def judging_code(judge: str) -> str:
    """Return the hash of our judges and environments, and of the package of the judge's builder."""
    point = plugins.registered(GROUP).get(judge)
    package = point.module.rpartition(".")[0] if point else ""
    return source_hash("judges", "environment", *[package] * bool(package))
