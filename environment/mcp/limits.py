"""Limits on what a session accepts from its server."""

from typing import TYPE_CHECKING

from learnloop_service.environment.base import EpisodeFailed
from learnloop_service.environment.bounded_http import AnswerLimits, json_values

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

_MAX_BYTES = 8_000_000
_MAX_VALUES = 500_000
MESSAGE = AnswerLimits(_MAX_BYTES, _MAX_VALUES)
"""Limits on one message of a process, or one answer over HTTP."""
MAX_PROCESS_BYTES = 32_000_000
"""Most bytes that a process can write in total."""


def check_message(text: bytes) -> None:
    """Raise EpisodeFailed for a message that is too expensive to parse."""
    if len(text) > _MAX_BYTES or json_values(text) > _MAX_VALUES:
        raise EpisodeFailed(f"the MCP server sent one message of over {_MAX_BYTES:,} bytes or {_MAX_VALUES:,} values")
