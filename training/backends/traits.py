"""What the service knows of a backend before it connects, and what it lends a backend that connects.

The module that a backend's entry point names can define `TRAITS`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from pydantic_settings import BaseSettings, SettingsConfigDict


class BackendSettings(BaseSettings):
    """A backend's settings. A subclass has a field for each, which is read from the environment variable of that name
    in capitals, or from the service's `.env` file. Its docstring is shown to users."""

    model_config = SettingsConfigDict(
        env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True, slots=True)
class ListedSetting:
    """One setting of a backend, for people."""

    variable: str
    description: str
    is_set: bool


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at before a run."""

    name: str
    state: State
    found: str
    remedy: str | None = None


class Address(Protocol):
    """Where a process of the service's listens."""

    @property
    def url(self) -> str:
        """URL without a path: `http://127.0.0.1:PORT`."""

    @property
    def key(self) -> str:
        """The key that it takes."""


class Host(Protocol):
    """What the service lends a backend that connects. Its methods can be called on any event loop."""

    async def engine(self) -> Address:
        """Return the address of the service's engine. Raises BackendUnavailable."""

    async def process(self, name: str, command: Sequence[str]) -> Address:
        """Return the address of a process of the backend's own, after starting it if it does not run.

        It is restarted when it dies, and ends with the service. It gets the flags of
        `learnloop_service.training.engine` and has a directory of that name in the data directory. Raises
        BackendUnavailable.
        """


def _usable(_: Any) -> None:
    """Refuse nothing."""


def _unexamined(_: Any) -> Iterator[Check]:
    """Yield nothing."""
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What a backend takes and reads, and whether it can be used here."""

    train_options: frozenset[str] = frozenset()
    """Names of the options of a GRPO step that it takes, of those that `train_options.py` lists."""
    samples_while_training: bool = True
    """Whether rollouts can run ahead of training (`pipeline.max_staleness`)."""
    trains_on_demonstrations: bool = False
    """Whether its policies are SupervisedPolicy (`warm_start`)."""
    takes_tuning: bool = False
    """Whether it is a TuningBackend, and takes `model.tuning` and `model.enable_thinking`."""
    on_engine: bool = False
    """Whether its models are those of the service's engine, which then also answers for them outside of runs. Only one
    backend is the engine's."""
    settings: type[BackendSettings] = BackendSettings
    """The settings that it reads. `refusal`, `preflight` and the entry point's function get an instance."""
    refusal: Callable[[Any], str | None] = _usable
    """Returns what is missing here and what to do about it; None if nothing is. It is called often, and must not
    wait."""
    preflight: Callable[[Any], Iterable[Check]] = _unexamined
    """Looks at what a run needs beyond that, such as a server that answers, for `learnloop preflight`. Can take
    seconds."""
