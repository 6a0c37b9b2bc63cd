"""Errors that can occur while a reply is streamed, after its HTTP status has been sent."""

from learnloop_service.app.errors import DATABASE_DOWN, ServiceError
from learnloop_service.app.gateway.chunks import AnotherReply

STREAM_ERRORS = (ServiceError, AnotherReply, *DATABASE_DOWN)


def status_of(error: Exception) -> int:
    """Return the HTTP status that the reply would have had."""
    if isinstance(error, ServiceError):
        return error.status
    return 502 if isinstance(error, AnotherReply) else 503
