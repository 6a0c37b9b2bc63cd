"""Plug-ins: objects that installed packages register under an entry-point group. Errors name the plug-in."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from learnloop_service.environment.installation import NAME


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


def load(what: str, point: EntryPoint) -> Any:
    """Return the object that the entry point names; `what` is `environment`, `judge` or `command`. Raises
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
