"""Routes that installed packages add to the API.

A package adds them with an entry point in the group `learnloop.routes` that names an `AddedRoutes`. They have the same
keys, limits and errors as ours, and are in the OpenAPI file. The entry point's own name is the first part of their
paths.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog
from fastapi import APIRouter

from app.settings import Settings
from environment import plugins

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AddedRoutes:
    """The routes of a package."""

    router: APIRouter
    """A router that `app.api.routers.keyed_router` made. Its tag is one of the API's."""
    files: Mapping[str, Callable[[Settings], int]] = field(default_factory=dict)
    """Paths whose body is a file instead of JSON, each with the function that returns its limit in bytes."""


def added_routes() -> Iterator[AddedRoutes]:
    """Yield the routes of each package. Those that cannot be loaded are logged and left out, since the rest of the
    service works without them."""
    for point in plugins.registered(plugins.ROUTES).values():
        try:
            found = plugins.load("routes", point)
        except plugins.PluginFault as fault:
            log.exception("routes left out", error=str(fault))
            continue
        if isinstance(found, AddedRoutes):
            yield found
        else:
            log.error("routes left out", error=f"{point.value} of {point.name!r} is no AddedRoutes: {found!r}")
