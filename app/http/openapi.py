"""The OpenAPI file. FastAPI generates it from the handlers; this module adds what all operations share: the errors, as
problem documents (RFC 9457), and the header `Idempotency-Key`.
"""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from app.auth.scopes import is_public
from app.errors import MEDIA_TYPE

Json = Any
_PROBLEM = {
    "type": "object",
    "title": "Problem",
    "description": "An error, as defined by RFC 9457. Some types have further members: `allowed`, `run_id`.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                    "msg": {"type": "string"},
                    "type": {"type": "string"},
                },
                "required": ["loc", "msg", "type"],
            },
        },
    },
    "required": ["type", "title", "status", "detail"],
}
_REFERENCE = {"schema": {"$ref": "#/components/schemas/Problem"}}
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""FastAPI's own description of a response to an invalid request, which we do not use."""
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes it safe to repeat the request: for 24 hours, the same key returns the first response",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


def install(app: FastAPI) -> None:
    """Make the application serve the completed file."""
    plain = app.openapi
    app.openapi = lambda: described(plain())  # type: ignore[method-assign]


def described(api: dict[str, Json]) -> dict[str, Json]:
    """Add what is missing, in place and only once."""
    schemas = api["components"]["schemas"]
    schemas["Problem"] = _PROBLEM
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            for status in () if is_public(path) else _errors(path, method, operation):
                operation["responses"][str(status)] = _response(status)
            if method == "post" and _IDEMPOTENCY_KEY not in operation.setdefault("parameters", []):
                operation["parameters"].append(_IDEMPOTENCY_KEY)
    return api


def _errors(path: str, method: str, operation: dict[str, Json]) -> Iterator[int]:
    """Error statuses that the operation can return."""
    yield from (401, 403, 429, 503)
    if "{" in path or method == "post":  # an object in the path or the body does not exist
        yield 404
    if method != "get":
        yield 409
    if method == "post" or "422" in operation["responses"]:
        yield 422
    if "requestBody" in operation:
        yield from (400, 413, 415)
    if "ask" in operation.get("tags", ()):
        yield 502


def _response(status: int) -> dict[str, Json]:
    response: dict[str, Json] = {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: _REFERENCE}}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until a retry"}}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
