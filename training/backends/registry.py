"""Backends by name: the shipped ones and those that installed packages register.

A package adds one with an entry point in the group `learnloop.backends` that names a coroutine function, which takes a
Host and the backend's settings and returns a connected Backend. A BackendTraits named `TRAITS` in the same module says
what the backend takes.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from learnloop_service.environment import plugins
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.backends.base import Backend, BackendRefused, BackendUnavailable
from learnloop_service.training.backends.traits import BackendSettings, BackendTraits, Check, Host, ListedSetting, State
from learnloop_service.training.protocol.validation_message import message_of

GROUP = "learnloop.backends"


class BadSettings(ValueError):
    """A setting of a backend is invalid. The message names each one without its value, which can be a secret."""


def names() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(plugins.registered(GROUP))


def traits(name: str) -> BackendTraits:
    """Return what the backend with that name declares. Raises PluginFault, or KeyError if there is none."""
    point = plugins.registered(GROUP)[name]
    plugins.load("backend", point)
    declared = getattr(sys.modules[point.module], "TRAITS", BackendTraits())
    if not isinstance(declared, BackendTraits):
        raise PluginFault(f"The backend {name!r}: TRAITS of {point.module} is {declared!r}, not a BackendTraits.")
    return declared


def loaded_traits(name: str) -> BackendTraits:
    """Return what the backend with that name declares; the defaults if it cannot be loaded."""
    try:
        return traits(name)
    except PluginFault:
        return BackendTraits()


def every_traits() -> Iterator[tuple[str, BackendTraits]]:
    """Yield the traits of all backends that can be loaded, by name."""
    for name in names():
        try:
            yield name, traits(name)
        except PluginFault:  # Its refusal says why.
            continue


@cache
def engine_backend() -> str:
    """Return the name of the backend whose models are those of the service's engine. Raises PluginFault."""
    for name, of_backend in every_traits():
        if of_backend.on_engine:
            return name
    raise PluginFault(
        "No backend of the engine is registered: Learnloop was installed before it had one. Install it again."
    )


def is_on_engine(name: str) -> bool:
    """Return whether the models of the backend with that name, which need not be installed, are on the engine."""
    return name == engine_backend()


def read_settings(name: str, **values: Any) -> BackendSettings:
    """Return the settings of a backend. Raises BadSettings or PluginFault."""
    model = traits(name).settings
    try:
        return model(**values)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        lines = (f"{_variable_of(model, str(problem['loc'][0]))}: {message_of(problem)}" for problem in problems)
        raise BadSettings("; ".join(lines)) from None


def settings_of_backends() -> list[BackendSettings]:
    """Return the settings of all backends that can be loaded and whose settings are valid."""
    settings = list[BackendSettings]()
    for name in names():
        with suppress(PluginFault, BadSettings):
            settings.append(read_settings(name))
    return settings


def listed_settings(name: str) -> list[ListedSetting]:
    """Return the settings of a backend for people; none if it cannot be loaded."""
    model = loaded_traits(name).settings
    try:
        set_fields = read_settings(name).model_fields_set
    except (PluginFault, BadSettings):  # The backend's refusal says why.
        set_fields = set()
    return [
        ListedSetting(_variable(model, field, info), info.description or "", field in set_fields)
        for field, info in model.model_fields.items()
    ]


def variables() -> set[str]:
    """Return the environment variables that the backends read."""
    return {
        _variable(of_backend.settings, field, info)
        for _, of_backend in every_traits()
        for field, info in of_backend.settings.model_fields.items()
    }


def refusal(name: str) -> str | None:
    """Return why a backend cannot be used here; None if it can. A fault of its package is a reason, too."""
    try:
        missing = traits(name).refusal(read_settings(name))
    except PluginFault as fault:
        return str(fault)
    except BadSettings as error:
        return f"The backend {name} is not available here: bad settings: {error}"
    except Exception as error:
        return f"The backend {name!r}: its `refusal` raised {type(error).__name__}: {error}"
    return None if missing is None else f"The backend {name} is not available here: {missing}"


def preflight(name: str) -> Iterable[Check]:
    """Yield the checks that a backend that is not refused makes before a run. If it raises, that is a failed check."""
    try:
        yield from traits(name).preflight(read_settings(name))
    except Exception as error:
        text = f"the `preflight` of {name!r} raised {type(error).__name__}: {error}"
        yield Check("backend", State.FAILED, text, "report it to whoever wrote the backend")


async def connect(name: str, host: Host) -> Backend:
    """Connect a backend for the caller's event loop. Raises BackendUnavailable, also for what its package raises, and
    BackendRefused."""
    point = plugins.registered(GROUP)[name]
    try:
        backend: Backend = await plugins.load("backend", point)(host, read_settings(name))
    except (BackendUnavailable, BackendRefused):
        raise
    except Exception as error:
        raise BackendUnavailable(
            f"The backend {name!r} cannot be connected: {type(error).__name__}: {error}"
        ) from error
    return backend


def _variable_of(model: type[BackendSettings], location: str) -> str:
    """Return the variable at fault in a problem with that location: the name of a field, or its alias."""
    info = model.model_fields.get(location)
    return location if info is None else _variable(model, location, info)


def _variable(model: type[BackendSettings], field: str, info: FieldInfo) -> str:
    """Return the environment variable that sets a field."""
    if isinstance(info.validation_alias, str):
        return info.validation_alias
    return f"{model.model_config.get('env_prefix', '')}{field}".upper()
