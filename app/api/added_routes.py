"""Routes that installed packages add to the API.

A package adds them with an entry point in the group `learnloop.routes` that names an `AddedRoutes`. They have the same
keys, limits and errors as ours, and are in the OpenAPI file. The entry point's own name is the first part of their
paths.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog
from fastapi import APIRouter

from learnloop_service.app.settings import Settings
from learnloop_service.environment import plugins

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AddedUpload:
    """A path that takes a file as its body instead of JSON, and how people are offered it. Its reply says what was
    stored, with the number of things in the file in the field that has the plural of `noun`."""

    max_bytes: Callable[[Settings], int]
    """Returns the limit of the body in bytes."""
    label: str
    """What is uploaded, as a command: `Upload an inbox`."""
    help: str
    """What the file can be."""
    accept: str
    """Endings of such files, separated by commas."""
    noun: str
    """What the file has many of, such as `email`."""


@dataclass(frozen=True, slots=True)
class AddedRoutes:
    """The routes of a package."""

    router: APIRouter
    """A router that `learnloop_service.app.api.routers.keyed_router` made. Its tag is one of the API's."""
    uploads: Mapping[str, AddedUpload] = field(default_factory=dict)
    """Uploads by their paths."""


def added_routes() -> Iterator[AddedRoutes]:
    """Yield the routes of each package. Those that cannot be loaded are logged and left out, since the rest of the
    service works without them."""
    for point in plugins.registered(plugins.ROUTES).values():
        try:
            routes = plugins.load("routes", point)
        except plugins.PluginFault as fault:
            log.exception("routes left out", error=str(fault))
            continue
        if isinstance(routes, AddedRoutes):
            yield routes
        else:
            log.error("routes left out", error=f"{point.value} of {point.name!r} is no AddedRoutes: {routes!r}")
