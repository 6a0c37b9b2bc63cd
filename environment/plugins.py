"""Plug-ins: what installed packages register under an entry-point group, loaded with errors that name it."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class PluginFault(Exception):
    """A plug-in cannot be loaded, raised, or returned something unexpected; the message says which and what.

    The exception that it raised is the cause.
    """


@cache  # looking through all installed packages takes longer than the rest of a request
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Entry points by name."""
    return {point.name: point for point in entry_points(group=group)}


def build(what: str, point: EntryPoint, *arguments: Any) -> Any:
    """What the plug-in's builder makes; `what` is `environment` or `judge`.

    Raises PluginFault, and as builders do, ValueError for a bad config.
    """
    try:
        builder: Callable[..., Any] = point.load()
    except Exception as error:
        raise PluginFault(
            f"The {what} {point.name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}"
        ) from error
    try:
        return builder(*arguments)
    except ValueError:
        raise
    except Exception as error:
        raise PluginFault(
            f"The {what} {point.name!r}: its builder {point.value} raised {type(error).__name__}: {error}"
        ) from error
