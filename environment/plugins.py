"""Plug-ins: objects that installed packages register under an entry-point group. Errors name the plug-in."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

ROUTES = "learnloop.routes"
"""Group of what packages add to the API, each under the first part of its paths."""


class PluginFault(Exception):
    """A plug-in cannot be loaded, raised an exception, or returned something unexpected; the message says which and
    what.

    The plug-in's exception, if any, is the cause.
    """


@cache  # Scanning all installed packages takes longer than the rest of a request.
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group by name."""
    return {point.name: point for point in entry_points(group=group)}


def load(what: str, point: EntryPoint) -> Any:
    """Return the object that the entry point names; `what` is `environment`, `judge`, `command` or `routes`. Raises
    PluginFault."""
    try:
        return point.load()
    except Exception as error:
        raise PluginFault(
            f"The {what} {point.name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}"
        ) from error


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
