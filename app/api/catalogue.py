"""What a learn-loop can be made of."""

from fastapi import APIRouter
from pydantic import BaseModel

import environment.registry
import judges.registry

router = APIRouter(tags=["catalogue"])


class Named(BaseModel):
    name: str


class Catalogue(BaseModel):
    """All of a kind; there are never so many that they need pages."""

    items: list[Named]
    next_cursor: None = None


@router.get("/environments")
async def list_environments() -> Catalogue:
    """The jobs an agent can learn here."""
    return Catalogue(items=[Named(name=name) for name in environment.registry.names()])


@router.get("/judges")
async def list_judges() -> Catalogue:
    """Who can score attempts."""
    return Catalogue(items=[Named(name=name) for name in judges.registry.names()])
