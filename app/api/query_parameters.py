"""Rejects unknown query parameters, because a misspelled filter would otherwise be ignored silently."""

from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from learnloop_service.app.domain.unknown_name import unknown

_EXPLAINED = 10


async def known_only(request: Request) -> None:
    """Raise RequestValidationError for unknown query parameters. A dependency of every route of our own API."""
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    names = list(_names(route.dependant))
    wrong = [name for name in dict.fromkeys(request.query_params) if name not in names]
    if wrong:
        raise RequestValidationError(
            [
                {"loc": ("query", name), "msg": unknown("parameter", name, names), "type": "extra_forbidden"}
                for name in wrong[:_EXPLAINED]
            ]
        )


def _names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a handler and of its dependencies."""
    for field in dependant.query_params:
        kind: Any = field.field_info.annotation
        yield from kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else [field.alias]
    for dependency in dependant.dependencies:
        yield from _names(dependency)
