"""Environments by name: the shipped ones and those that installed packages register.

A package adds one with an entry point in the group `learnloop.environments` that names a builder:
a callable taking the request's `environment.config` and the data directory, returning an Environment.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from environment.base import Environment, Json

Builder = Callable[[Mapping[str, Json], Path], Environment]
GROUP = "learnloop.environments"


class UnknownEnvironment(Exception):
    """No environment of that name is registered."""


def names() -> list[str]:
    """Registered names, sorted."""
    return sorted(_registered())


def build(name: str, config: Mapping[str, Json], data_dir: Path) -> Environment:
    """The environment of that name. Raises UnknownEnvironment, or ValueError for a bad config."""
    if (point := _registered().get(name)) is not None:
        builder: Builder = point.load()
        return builder(config, data_dir)
    raise UnknownEnvironment(f"Unknown environment {name!r}. Available: {', '.join(names())}.")


@cache  # looking through all installed packages takes longer than the rest of a request
def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
