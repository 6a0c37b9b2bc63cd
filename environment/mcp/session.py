"""One session with an MCP server, used by one episode.

A session runs in its own task, because the SDK's contexts must be left in the task that entered them. When that task
ends, all pending calls end as well, so that none waits for a server that has gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import EpisodeFailed, Json, Tool
from learnloop_service.environment.bounded_http import AnswerRefused
from learnloop_service.environment.mcp.config import McpConfig, Server, StdioServer
from learnloop_service.environment.mcp.http import http_transport
from learnloop_service.environment.mcp.messages import RawResult, storable
from learnloop_service.environment.mcp.stdio import stdio_transport
from learnloop_service.environment.mcp.tools import text_of, tool_of
from learnloop_service.environment.server_tools import ToolText, failure, offered

if TYPE_CHECKING:
    from mcp import ClientSession

    from learnloop_service.environment.mcp.limits import Streams

START_TIMEOUT_S = 60.0
"""Longest wait for a server to list its tools, in seconds; the first start of one that npx or uvx downloads takes
long."""
_PING_TIMEOUT_S = 5.0
_ENDING_S = 1.0
"""Longest wait for a session that lost its connection to say why, in seconds."""
_MAX_PAGES = 100
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class McpSession:
    """A connection to the server, started on construction."""

    def __init__(self, config: McpConfig, access: Access) -> None:
        self._config = config
        self._access = access
        self._stop = asyncio.Event()
        self._client: ClientSession | None = None
        self._tools: Mapping[str, tuple[str, Tool]] = {}
        self._ready = asyncio.Event()
        self.begun_at = asyncio.get_running_loop().time()
        self.task = asyncio.create_task(self._run(), name="mcp-session")
        """Done when all resources of the session are released."""
        self.task.add_done_callback(_retrieve_exception)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools offered to the model; available once the session is ready."""
        return [tool for _, tool in self._tools.values()]

    async def ready(self) -> None:
        """Wait until the tools are known. Raises EpisodeFailed."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._result_or_failure(self._ready.wait())
        except TimeoutError:
            self.close()
            raise EpisodeFailed(f"the MCP server did not name its tools within {START_TIMEOUT_S:g} s") from None

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolText:
        """Return what the model reads of the tool's result. Raises EpisodeFailed if the server itself failed."""
        if name not in self._tools:
            return failure(f"there is no tool {name!r}; there are: {', '.join(self._tools)}")
        return await self._result_or_failure(self._call(self._tools[name][0], dict(arguments)))

    def close(self) -> None:
        """End the session; `task` is done once it has ended. A session that has not started is killed, because it would
        wait for its server."""
        if self._client is None:
            self.kill()
        self._stop.set()

    def kill(self) -> None:
        """End the session without waiting for the server."""
        self.task.cancel()

    async def _run(self) -> None:
        from mcp import ClientSession
        from mcp.types import Implementation

        client_info = Implementation(name="learnloop", version="1")
        async with (
            self._transport() as (reader, writer),
            ClientSession(reader, writer, client_info=client_info) as client,
        ):
            await client.initialize()
            self._tools = offered(await _all_tools(client), self._config.allow_tools, "the MCP server")
            self._client = client
            self._ready.set()
            await self._stop.wait()

    def _transport(self) -> "AbstractAsyncContextManager[Streams]":
        server = self._config.server
        assert server is not None, "admitted without a server"
        if isinstance(server, StdioServer):
            return stdio_transport(server, self._access)
        return http_transport(server, self._access)

    async def _call(self, name: str, arguments: dict[str, Json]) -> ToolText:
        import anyio
        from mcp import McpError
        from mcp.types import CONNECTION_CLOSED, CallToolRequest, CallToolRequestParams, ClientRequest

        assert self._client is not None, "not ready"
        limit = timedelta(seconds=self._config.tool_timeout_s)
        params = CallToolRequestParams(name=name, arguments=storable(arguments))
        request = ClientRequest(CallToolRequest(params=params))
        try:
            # The SDK's own method gives an error instead of a result that does not match the tool's schema.
            result = await self._client.send_request(request, RawResult, request_read_timeout_seconds=limit)
        except McpError as error:
            if error.error.code == HTTPStatus.REQUEST_TIMEOUT:
                await self._check_alive()
                return failure(f"no result within {self._config.tool_timeout_s:g} s")
            if error.error.code == CONNECTION_CLOSED:
                await self._check_connected()
            return failure(error.error.message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._check_connected()
            raise
        return text_of(result.root, self._config.max_result_characters)

    async def _check_alive(self) -> None:
        """Raise EpisodeFailed if the server answers no ping. A slow tool is the model's choice; an unresponsive server
        is not."""
        assert self._client is not None, "not ready"
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await self._client.send_ping()
        except Exception as error:
            await self._check_connected()
            raise EpisodeFailed(
                f"the MCP server hangs: no result within {self._config.tool_timeout_s:g} s, and no answer to a ping"
            ) from error

    async def _check_connected(self) -> None:
        """Raise EpisodeFailed if the connection is lost. The error's number does not show that, because servers use the
        SDK's own number for other errors."""
        await asyncio.wait({self.task}, timeout=_ENDING_S)
        if self.task.done():
            raise EpisodeFailed(_failure_reason(self.task))

    async def _result_or_failure(self, work: Awaitable[Result]) -> Result:
        """Return the result of the work. Raises EpisodeFailed if the session ends first."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({working, self.task}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EpisodeFailed(_failure_reason(self.task))
            return working.result()
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await working


async def tools_of(server: Server, access: Access) -> Sequence[Tool]:
    """Return the server's tools as offered to models. Raises EpisodeFailed."""
    session = McpSession(McpConfig(server), access)
    try:
        await session.ready()
        return session.tools
    finally:
        session.close()
        await asyncio.wait({session.task})


async def _all_tools(client: "ClientSession") -> list[Tool]:
    """Return the tools that can be called; others are left out, and the log says how many."""
    from mcp.types import ClientRequest, ListToolsRequest, PaginatedRequestParams

    tools: list[Tool] = []
    cursor, left_out = None, 0
    for _ in range(_MAX_PAGES):
        request = ClientRequest(ListToolsRequest(params=PaginatedRequestParams(cursor=cursor)))
        page = (await client.send_request(request, RawResult)).root
        listed = page.get("tools")
        on_page = [tool_of(declaration) for declaration in listed] if isinstance(listed, list) else []
        tools += filter(None, on_page)
        left_out += on_page.count(None)
        cursor = page.get("nextCursor")
        if not cursor or not isinstance(cursor, str):
            if left_out:
                _log.warning("%d of %d tools of the MCP server have no name", left_out, left_out + len(tools))
            return tools
    raise EpisodeFailed(f"the MCP server's list of tools has more than {_MAX_PAGES} pages")


def _retrieve_exception(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def _failure_reason(task: "asyncio.Task[None]") -> str:
    """Explain in one sentence what ended the session."""
    error: BaseException | None = None if task.cancelled() else task.exception()
    failed = error
    while isinstance(failed, BaseExceptionGroup):
        # Prefer our own errors: those of the SDK are consequences.
        explained = (inner for inner in failed.exceptions if isinstance(inner, EpisodeFailed | AnswerRefused))
        failed = next(explained, failed.exceptions[0])
    if isinstance(failed, EpisodeFailed):
        return str(failed)
    if isinstance(failed, AnswerRefused):
        return f"the MCP server cannot be used: {failed}"
    if failed is None:
        return "the MCP session ended"
    first_line = str(failed).partition("\n")[0]
    return f"the MCP session ended: {type(failed).__name__}: {first_line}"
