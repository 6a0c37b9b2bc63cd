"""Judges by name, from the entry-point group `learnloop.judges` (as environments are)."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from environment.base import Json
from judges.base import Judge, JudgeServices

Builder = Callable[[Mapping[str, Json], JudgeServices], Judge]
GROUP = "learnloop.judges"


class UnknownJudge(Exception):
    """No judge of that name is registered."""


def names() -> list[str]:
    """Registered names, sorted."""
    return sorted(_registered())


def build(name: str, config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """The judge of that name. Raises UnknownJudge, or ValueError for a bad config."""
    if (point := _registered().get(name)) is not None:
        builder: Builder = point.load()
        return builder(config, services)
    raise UnknownJudge(f"Unknown judge {name!r}. Available: {', '.join(names())}.")


@cache  # looking through all installed packages takes longer than the rest of a request
def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
