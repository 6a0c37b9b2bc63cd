"""Kinds of places that checkpoints can be pushed to.

A package adds one with an entry point in the group `learnloop.pushes` that names a DestinationKind. The operator's
settings say what is allowed; a request can only name a place within them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from learnloop_service.app.errors import Conflict
from learnloop_service.app.settings import Settings
from learnloop_service.environment import plugins
from learnloop_service.environment.installation import needs_extra
from learnloop_service.environment.json_type import Json

GROUP = "learnloop.pushes"


@dataclass(frozen=True, slots=True)
class DestinationKind:
    """One kind of place."""

    target: Callable[[Settings, str, str], Any]
    """Returns the place with a name for a project: a dataclass of JSON values. Raises Forbidden, or Conflict (missing
    setting or library)."""
    upload: Callable[[Path, Mapping[str, Json], str], tuple[str, str | None]]
    """Uploads a folder to a place, given as JSON, with a message, and returns its address and the revision, if it has
    any. It is called in a process of its own, and can raise anything."""


def destination(name: str) -> DestinationKind:
    """Return the registered kind of place. Raises PluginFault, or Conflict if there is none."""
    if (point := plugins.registered(GROUP).get(name)) is None:
        raise Conflict(f"This service cannot push to {name}: no installed package adds it.")
    loaded = plugins.load("destination of pushes", point)
    if not isinstance(loaded, DestinationKind):
        raise plugins.PluginFault(f"The destination of pushes {name!r}: {point.value} is not a DestinationKind.")
    return loaded


def require_settings(needed: Mapping[str, Any]) -> None:
    """Raise Conflict if one of the settings has no value."""
    if missing := [name for name, value in needed.items() if not value]:
        raise Conflict(f"This service is not configured for this push. Missing settings: {', '.join(missing)}.")


def require_library(module: str) -> None:
    """Raise Conflict if the library of a push is missing."""
    if find_spec(module) is None:
        raise Conflict(f"This push needs {needs_extra('export')}.")
