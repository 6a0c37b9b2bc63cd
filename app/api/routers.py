"""Constructors of the API's routers.

Settings common to all their routes are made here and not where the application includes the routers: FastAPI would
build every route again for each inclusion, and the first request would have to wait for that.
"""

from enum import Enum
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from learnloop_service.app.api.ownership import own_only
from learnloop_service.app.api.query_parameters import known_only
from learnloop_service.app.http.openapi import operation_id

BEARER = HTTPBearer(auto_error=False, description="An API key. Required unless the service listens on loopback only.")
"""The scheme for the OpenAPI file, which checks nothing: the Guard checks the key."""


def public_router(tag: str, *, prefix: str = "") -> APIRouter:
    """Return a router for routes that need no key."""
    return _router(tag, prefix=prefix)


def keyed_router(tag: str, **options: Any) -> APIRouter:
    """Return a router whose routes need a key and reach only objects of its project. `options` are APIRouter's."""
    return _router(tag, dependencies=[Depends(BEARER), Depends(own_only), Depends(known_only)], **options)


def openai_router(tag: str, **options: Any) -> APIRouter:
    """Return the same for other vendors' protocols, whose clients send query parameters that we ignore."""
    return _router(tag, dependencies=[Depends(BEARER), Depends(own_only)], **options)


def _router(tag: str, **options: Any) -> APIRouter:
    tags: list[str | Enum] = [tag]
    return APIRouter(tags=tags, strict_content_type=False, generate_unique_id_function=operation_id, **options)
