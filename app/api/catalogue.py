"""What a learn-loop can be made of."""

from fastapi import APIRouter
from pydantic import BaseModel

import environment.registry
import judges.registry
from app.api.dependencies import CurrentService
from app.backends import choices

router = APIRouter(tags=["catalogue"])


class Named(BaseModel):
    name: str


class Catalogue(BaseModel):
    """All of a kind; there are never so many that they need pages."""

    items: list[Named]
    next_cursor: None = None


class BackendOut(Named):
    available: bool
    reason: str | None
    """Why not, and what to do about it."""


class BackendCatalogue(BaseModel):
    items: list[BackendOut]
    next_cursor: None = None


@router.get("/backends")
async def list_backends(service: CurrentService) -> BackendCatalogue:
    """Where models can be trained."""
    found = choices(service.settings)
    return BackendCatalogue(
        items=[BackendOut(name=each.name, available=each.refusal is None, reason=each.refusal) for each in found]
    )


@router.get("/environments")
async def list_environments() -> Catalogue:
    """The jobs an agent can learn here."""
    return Catalogue(items=[Named(name=name) for name in environment.registry.names()])


@router.get("/judges")
async def list_judges() -> Catalogue:
    """Who can score attempts."""
    return Catalogue(items=[Named(name=name) for name in judges.registry.names()])
