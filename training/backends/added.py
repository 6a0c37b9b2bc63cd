"""Backends that installed packages add, and what the service knows of any backend before it connects.

A package adds one with an entry point in the group `learnloop.backends` that names a coroutine function without
arguments, which returns a connected Backend. A BackendTraits named `TRAITS` in the same module says what it takes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from learnloop_service.environment import plugins
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.backends.base import Backend, BackendRefused, BackendUnavailable

GROUP = "learnloop.backends"


def _usable() -> None:
    """Refuse nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What a backend takes, and whether it can be used here."""

    train_options: frozenset[str] = frozenset()
    """Names of the options of a GRPO step that it takes, of those that `train_options.py` lists."""
    samples_while_training: bool = True
    """Whether rollouts can run ahead of training (`pipeline.max_staleness`)."""
    trains_on_demonstrations: bool = False
    """Whether its policies are SupervisedPolicy (`warm_start`)."""
    takes_tuning: bool = False
    """Whether it is a TuningBackend, and takes `model.tuning` and `model.enable_thinking`."""
    refusal: Callable[[], str | None] = _usable
    """Returns what is missing here and what to do about it; None if nothing is. It is called often, and must not
    wait."""


def names() -> list[str]:
    """Return the names of the backends that packages add, sorted."""
    return sorted(plugins.registered(GROUP))


def traits(name: str) -> BackendTraits:
    """Return the traits of a package's backend. Raises PluginFault."""
    point = plugins.registered(GROUP)[name]
    plugins.load("backend", point)
    found = getattr(sys.modules[point.module], "TRAITS", BackendTraits())
    if not isinstance(found, BackendTraits):
        raise PluginFault(f"The backend {name!r}: TRAITS of {point.module} is {found!r}, not a BackendTraits.")
    return found


def refusal(name: str) -> str | None:
    """Return why a package's backend cannot be used here; None if it can. A fault of the package is a reason, too."""
    try:
        missing = traits(name).refusal()
    except PluginFault as fault:
        return str(fault)
    except Exception as error:
        return f"The backend {name!r}: its `refusal` raised {type(error).__name__}: {error}"
    return None if missing is None else f"The backend {name} is not available here: {missing}"


async def connect(name: str) -> Backend:
    """Connect a package's backend for the caller's event loop. Raises BackendUnavailable, also for what the package
    raises, and BackendRefused."""
    point = plugins.registered(GROUP)[name]
    try:
        backend: Backend = await plugins.load("backend", point)()
    except (BackendUnavailable, BackendRefused):
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"The backend {name!r} cannot be connected: {type(error).__name__}: {error}"
        ) from error
    return backend
