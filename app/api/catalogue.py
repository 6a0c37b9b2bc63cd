"""What learn-loops can use: backends, environments and judges."""

from pydantic import Field

import environment.registry
import judges.registry
from app.api.dependencies import CurrentSettings
from app.api.routers import keyed_router
from app.backends import choices
from app.schemas.base import ResponseModel

router = keyed_router("catalogue")


_SINGLE_PAGE = "Always null: the list has a single page."


class Named(ResponseModel):
    """Something that a learn-loop can use."""

    name: str
    """Its name, as requests use it."""


class Catalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[Named]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


class BackendOut(Named):
    """A backend, and whether it can be used here."""

    available: bool
    """Whether runs can use it."""
    reason: str | None
    """Why it is not available, and what to do about it."""


class BackendCatalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[BackendOut]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


@router.get("/backends")
async def list_backends(settings: CurrentSettings) -> BackendCatalogue:
    """List the backends that can train models, and whether each is available here."""
    found = choices(settings)
    return BackendCatalogue(
        items=[BackendOut(name=each.name, available=each.refusal is None, reason=each.refusal) for each in found]
    )


@router.get("/environments")
async def list_environments() -> Catalogue:
    """List the environments that agents can be trained in."""
    return Catalogue(items=[Named(name=name) for name in environment.registry.names()])


@router.get("/judges")
async def list_judges() -> Catalogue:
    """List the judges that can score rollouts."""
    return Catalogue(items=[Named(name=name) for name in judges.registry.names()])
