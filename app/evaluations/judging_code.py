"""A hash of the code that decides a judge's verdicts."""

from environment import plugins
from judges.registry import GROUP
from training.source_code import source_hash


def judging_code(judge: str) -> str:
    """Return the hash of our judges and environments, and of the package of the judge's builder."""
    point = plugins.registered(GROUP).get(judge)
    package = point.module.rpartition(".")[0] if point else ""
    return source_hash("judges", "environment", *[package] * bool(package))
