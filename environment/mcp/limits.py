"""What a session takes from its server at most."""

from typing import TYPE_CHECKING

from environment.base import EpisodeFailed

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

MAX_SESSION_BYTES = 32_000_000


def too_much() -> EpisodeFailed:
    """Raised where a server sends more."""
    return EpisodeFailed(f"the MCP server sent more than {MAX_SESSION_BYTES // 1_000_000} MB in one session")
