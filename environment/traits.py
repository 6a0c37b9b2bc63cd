"""What the service knows about an environment before building one: which settings of its config hold data, and how.

The module of an environment's builder can define `TRAITS`. Without it, the service does not interpret the config.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from learnloop_service.environment.base import Json


@dataclass(frozen=True, slots=True)
class Document:
    """A setting whose value, a list, is stored once under its hash and not with every run that uses it."""

    check: Callable[[Json], object]
    """Raises ValueError for an invalid value."""
    size: Callable[[Sequence[Json]], Mapping[str, int]]
    """Returns the figures shown about its size, next to its hash. Accepts any list."""
    learned_on: Callable[[Mapping[str, Json]], Sequence[Json] | None]
    """Returns, from an environment's learned state, the document that a run invented because its config had none."""
    title: str = ""
    """What the document is called where it is given, such as on the form that starts a run."""
    description: str = ""
    """What it is made of, and what happens without one."""
    example: Sequence[Json] = ()
    """A short valid document."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of the dashboard that runs of the environment have, beside those that all runs have."""

    name: str
    """Its part of the path, in lower case, such as `emails`."""
    title: str
    """Text of its tab."""
    folder: Traversable
    """Where its files are: `files("my_package") / "dashboard"`."""
    module: str
    """ES module in the folder that exports the Preact component `Page`. It gets `{data, run, query}` as all pages of
    runs do, and imports modules of the dashboard as `learnloop/parts/html.js`."""
    style: str | None = None
    """Style sheet in the folder."""


def _unchanged_config(task: Mapping[str, Json], config: Mapping[str, Json], data_dir: Path) -> Mapping[str, Json]:
    return config


@dataclass(frozen=True, slots=True)
class Traits:
    """What an environment declares about itself, its tasks and its config."""

    description: str = ""
    """What the agent does in it, in a sentence or two for the person who chooses it."""
    datasets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Settings that can name a data set of the project (`inbox`, `scenarios`), each with the words that have another
    meaning there."""
    asked_without: frozenset[str] = frozenset()
    """Settings that a user's own task does not need."""
    documents: Mapping[str, Document] = field(default_factory=dict)
    """Documents by setting. `scenarios` are stored in the same way in every environment."""
    pages: Sequence[RunPage] = ()
    """Pages of the dashboard for its runs."""
    reward_settings: frozenset[str] = frozenset()
    """Settings that decide the reward and nothing that an agent sees, so that stored rollouts can be rewarded again by
    others."""
    task: Mapping[str, Json] | None = None
    """What a user's own task is made of: a JSON schema of an object, whose properties have a `title` and can have a
    `description` and `examples`. None if any object can be one."""
    repeats: bool = False
    """Whether the same tool calls have the same results and no effect outside the episode, so that a recorded rollout
    can be replayed."""
    milestones: Mapping[str, str] = field(default_factory=dict)
    """Facts of an outcome that a success needs, in the order in which they come about, each with a phrase for a rollout
    that missed it, such as "never found the source". They name the patterns of failures."""
    config_for: Callable[[Mapping[str, Json], Mapping[str, Json], Path], Mapping[str, Json]] = _unchanged_config
    """Returns, for a user's task, a config and the data directory, the config in which the task can be done. Raises
    UnknownScenario, with a message for the user, if there is none."""
    agent: Callable[[Mapping[str, Json]], Any] | None = None
    """Builds, from a config, the agent that makes the environment's rollouts in place of the built-in loop
    (`training/rollout/agents/base.py`). Raises ValueError for a bad config. None if the environment brings none."""
