"""Judges by name, from the entry-point group `learnloop.judges` (as environments are)."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from environment.base import Json
from judges.base import Judge, JudgeServices

Builder = Callable[[Mapping[str, Json], JudgeServices], Judge]
GROUP = "learnloop.judges"


class UnknownJudge(Exception):
    """No judge of that name is registered."""


def names() -> list[str]:
    """Registered names, sorted."""
    return sorted(point.name for point in entry_points(group=GROUP))


def build(name: str, config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """The judge of that name. Raises UnknownJudge, or ValueError for a bad config."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            builder: Builder = point.load()
            return builder(config, services)
    raise UnknownJudge(f"no judge named {name!r}; there are: {', '.join(names())}")
