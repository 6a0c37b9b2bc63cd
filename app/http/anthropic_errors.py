"""Errors in the format of Anthropic's API."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from learnloop_service.environment.full_context import read_full_context

_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by status, where they differ from the default."""
_BAD_REQUEST = 400


def error_document(status: int, message: str) -> dict[str, Any]:
    """Return an error document. In a stream, it is the data of the event `error`. A prompt that is too long is
    reported in Anthropic's words, because its clients look for them."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if status == _BAD_REQUEST and (full := read_full_context(message)) is not None:
        message = "prompt is too long: {} tokens > {} maximum".format(*full)
    return {"type": "error", "error": {"type": kind, "message": message}}


def anthropic_error(status: int, message: str, *, headers: Any = None) -> JSONResponse:
    """Return an error as a response."""
    return JSONResponse(error_document(status, message), status, headers)
