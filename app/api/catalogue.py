"""What learn-loops can use: backends, environments and judges."""

import environment.registry
import judges.registry
from app.api.dependencies import CurrentSettings
from app.api.routers import keyed_router
from app.backends import choices
from app.schemas.base import ResponseModel

router = keyed_router("catalogue")


class Named(ResponseModel):
    name: str


class Catalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[Named]
    next_cursor: None = None


class BackendOut(Named):
    available: bool
    reason: str | None
    """Why it is not available, and what to do about it."""


class BackendCatalogue(ResponseModel):
    items: list[BackendOut]
    next_cursor: None = None


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
