"""Plug-ins: objects that installed packages register under an entry-point group. Errors name the plug-in."""

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any, TypeVar

from learnloop_service.environment.installation import NAME

_KNOWN = files(__package__) / "known_plugins.json"
"""What packages of this repository bring, by entry-point group, so that one that is missing can be named."""

_Declared = TypeVar("_Declared")

ROUTES = "learnloop.routes"
"""Group of what packages add to the API, each under the first part of its paths."""


class PluginFault(Exception):
    """A plug-in cannot be loaded, raised an exception, or returned something unexpected; the message says which and
    what.

    The plug-in's exception, if any, is the cause.
    """


@cache  # Scanning all installed packages takes longer than the rest of a request.
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group by name. No package can replace one of ours."""
    by_others_first = sorted(entry_points(group=group), key=_is_ours)
    return {point.name: point for point in by_others_first}


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == NAME


def where_to_find(group: str, name: str) -> str:
    """Return a sentence on the package of ours that would register that name; empty if none of them would.

    `documents` instead of a group stands for settings of environments that are documents.
    """
    package = _packages(group).get(name)
    return f"It comes with {package}, which is not installed here (docs/install.md#plug-ins)." if package else ""


def missing(group: str) -> list[str]:
    """Return the names that packages of ours would register and that no installed package registers."""
    return [name for name in _packages(group) if name not in registered(group)]


@cache
def _packages(group: str) -> Mapping[str, str]:
    """Return the names that packages of ours register, each with its package."""
    packages = json.loads(_KNOWN.read_text(encoding="utf-8"))
    return {name: package["distribution"] for package in packages for name in package["names"].get(group, ())}


def load(what: str, point: EntryPoint) -> Any:
    """Return the object that the entry point names; `what` is `environment`, `judge`, `command` or `routes`. Raises
    PluginFault."""
    try:
        return point.load()
    except Exception as error:
        raise PluginFault(
            f"The {what} {point.name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}"
        ) from error


@cache
def declared(what: str, point: EntryPoint, kind: type[_Declared]) -> _Declared:
    """Return the `TRAITS` of the builder's module; the defaults if it has none of that kind or cannot be loaded, which
    building it reports."""
    try:
        load(what, point)
    except PluginFault:
        return kind()
    traits = getattr(sys.modules[point.module], "TRAITS", None)
    return traits if isinstance(traits, kind) else kind()


def build(what: str, point: EntryPoint, *arguments: Any) -> Any:
    """Return what the plug-in's builder makes.

    Raises PluginFault, or ValueError for a bad config, as the builders do.
    """
    builder: Callable[..., Any] = load(what, point)
    try:
        return builder(*arguments)
    except ValueError:
        raise
    except Exception as error:
        raise PluginFault(
            f"The {what} {point.name!r}: its builder {point.value} raised {type(error).__name__}: {error}"
        ) from error
