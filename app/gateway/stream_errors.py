"""What can go wrong while a reply is streamed, when its status has been sent."""

from app.errors import DATABASE_DOWN, ServiceError
from app.gateway.chunks import AnotherReply

STREAM_ERRORS = (ServiceError, AnotherReply, *DATABASE_DOWN)


def status_of(error: Exception) -> int:
    """The status that the reply would have had."""
    if isinstance(error, ServiceError):
        return error.status
    return 502 if isinstance(error, AnotherReply) else 503
