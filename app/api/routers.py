"""The routers of the API's parts.

What all their routes share stands here instead of where the application includes them: FastAPI builds every route once
more for each inclusion, which the first request would wait for.
"""

from enum import Enum
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from app.api.ownership import own_only
from app.api.query_parameters import known_only
from app.http.openapi import operation_id

BEARER = HTTPBearer(auto_error=False, description="An API key. Required unless the service listens on loopback only.")
"""For the documentation only: the Guard checks the key."""


def public_router(tag: str, *, prefix: str = "") -> APIRouter:
    """Routes that need no key."""
    return _router(tag, prefix=prefix)


def keyed_router(tag: str, **options: Any) -> APIRouter:
    """Routes for holders of a key, who reach the objects of their own project only. `options` are APIRouter's."""
    return _router(tag, dependencies=[Depends(BEARER), Depends(own_only), Depends(known_only)], **options)


def openai_router(tag: str, **options: Any) -> APIRouter:
    """The same for protocols that are not ours: their clients send query parameters that we ignore."""
    return _router(tag, dependencies=[Depends(BEARER), Depends(own_only)], **options)


def _router(tag: str, **options: Any) -> APIRouter:
    tags: list[str | Enum] = [tag]
    return APIRouter(tags=tags, strict_content_type=False, generate_unique_id_function=operation_id, **options)
