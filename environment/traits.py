"""What the service knows of an environment before it builds one: which settings of its config are data, and how.

The module of an environment's builder can have a `TRAITS`; without it, its config is its own affair.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environment.base import Json


@dataclass(frozen=True, slots=True)
class Document:
    """A setting whose value, a list, is stored once by its hash, not with every run that has it."""

    check: Callable[[Json], object]
    """Raises ValueError for a value that is none."""
    size: Callable[[Sequence[Json]], Mapping[str, int]]
    """What is said of its size beside its hash. It takes any list."""
    learned_on: Callable[[Mapping[str, Json]], Sequence[Json] | None]
    """The document that a run without one of its own invented, from what its environment has learned."""


def _as_it_is(task: Mapping[str, Json], config: Mapping[str, Json], data_dir: Path) -> Mapping[str, Json]:
    return config


@dataclass(frozen=True, slots=True)
class Traits:
    """What an environment says of its config."""

    datasets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Settings that can be the name of a data set of the project (`inbox`, `scenarios`), each with words that are not
    meant as a name."""
    asked_without: frozenset[str] = frozenset()
    """Settings that a user's own task does not need."""
    documents: Mapping[str, Document] = field(default_factory=dict)
    """By setting. `scenarios` are stored so, too, in any environment."""
    config_for: Callable[[Mapping[str, Json], Mapping[str, Json], Path], Mapping[str, Json]] = _as_it_is
    """From a user's task, a config and the data directory: the config in which the task can be done. Raises
    UnknownScenario, with a message for the user, if there is none."""
