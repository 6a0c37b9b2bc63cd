"""Transport of the MCP SDK to a server's process.

The SDK's own transport reads lines of any length into memory, lets the server inherit our standard error, and can leave
a server's children behind. Here everything that a session reads is limited, and the server's process group is killed at
the end.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import ValidationError

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import EpisodeFailed
from learnloop_service.environment.mcp.config import StdioServer
from learnloop_service.environment.mcp.limits import MAX_PROCESS_BYTES, check_message
from learnloop_service.environment.mcp.messages import failed_reply, message_of

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    from learnloop_service.environment.mcp.limits import Streams

_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "USER")
"""Environment variables that a server inherits: those of the SDK, and the places of certificates; never our keys."""
_CHUNK = 65_536
_GRACE_S = 1.0
"""Longest wait for a server to exit after its standard input was closed, in seconds."""
_STDERR_BYTES = 2_000


@asynccontextmanager
async def stdio_transport(server: StdioServer, access: Access) -> "AsyncIterator[Streams]":
    """Yield the streams of a new process in an empty working directory; both are removed afterwards.

    Raises EpisodeFailed for a server that cannot be started, exits, or sends too much.
    """
    with TemporaryDirectory(prefix="learnloop-mcp-", ignore_cleanup_errors=True) as directory:
        process = await _started(server, access, directory)
        grace_s = 0.0
        try:
            async with _streams(process) as streams:
                yield streams
            grace_s = _GRACE_S
        finally:
            await _end(process, grace_s)


async def _started(server: StdioServer, access: Access, directory: str) -> Process:
    secrets = {variable: access.secret(server.name, name) for variable, name in server.env.items()}
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        return await access.start(server.command, {**inherited, "TMPDIR": directory, **secrets}, Path(directory))
    except OSError as error:
        raise EpisodeFailed(f"the MCP server {server.name} cannot be started: {error.strerror or error}") from error


@asynccontextmanager
async def _streams(process: Process) -> "AsyncIterator[Streams]":
    import anyio
    from mcp.shared.message import SessionMessage

    incoming, reader = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writer, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    stderr_tail = _StderrTail()
    async with anyio.create_task_group() as tasks, incoming, reader, writer, outgoing:
        tasks.start_soon(_read, process, incoming, stderr_tail)
        tasks.start_soon(_write, process, outgoing)
        tasks.start_soon(stderr_tail.read, process)
        yield reader, writer
        tasks.cancel_scope.cancel()


class _StderrTail:
    """The end of a server's standard error."""

    def __init__(self) -> None:
        self._text = b""
        self.complete = asyncio.Event()

    async def read(self, process: Process) -> None:
        """Read until the end of the stream."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(_CHUNK):
            self._text = (self._text + chunk)[-_STDERR_BYTES:]
        self.complete.set()

    def __str__(self) -> str:
        text = self._text.decode(errors="replace").strip()
        return f"; it last wrote: {text}" if text else ""


async def _read(
    process: Process, received: "MemoryObjectSendStream[SessionMessage | Exception]", stderr_tail: _StderrTail
) -> None:
    """Forward messages, one per line. Other lines are ignored, because servers print banners."""
    from mcp.shared.message import SessionMessage

    assert process.stdout is not None
    rest, total = bytearray(), 0
    while chunk := await process.stdout.read(_CHUNK):
        total += len(chunk)
        if total > MAX_PROCESS_BYTES:
            raise EpisodeFailed(f"the MCP server sent more than {MAX_PROCESS_BYTES:,} bytes in one session")
        *lines, end = chunk.split(b"\n")
        for line in lines:
            message = bytes(rest) + line
            check_message(message)
            parsed = failed_reply(message)
            with suppress(ValidationError):
                parsed = message_of(message)
            if parsed is not None:
                await received.send(SessionMessage(parsed))
            rest.clear()
        rest += end
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
            await stderr_tail.complete.wait()  # What it wrote last can arrive after its exit.
    ended = "closed its output" if process.returncode is None else f"ended with status {process.returncode}"
    raise EpisodeFailed(f"the MCP server {ended}{stderr_tail}")


async def _write(process: Process, outgoing: "MemoryObjectReceiveStream[SessionMessage]") -> None:
    assert process.stdin is not None
    async for message in outgoing:
        text = message.message.model_dump_json(by_alias=True, exclude_none=True)
        with suppress(ConnectionError):  # The process has exited, which the reader reports.
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _end(process: Process, grace_s: float) -> None:
    """Give the server a moment to exit by itself, then kill the rest of its process group."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):  # A grandchild that left the group can still hold the pipes.
        async with asyncio.timeout(_GRACE_S):
            for pipe in (process.stdout, process.stderr):
                while pipe is not None and await pipe.read(
                    _CHUNK
                ):  # asyncio does not notice the end of a process while its output is unread.
                    pass
            await process.wait()
