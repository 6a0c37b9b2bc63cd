"""Forwards requests to the server of a model and streams the replies back.

Replies are not buffered: a slow client slows the server down, a client that disconnects ends the sampling, and no
request outlives its deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import structlog
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from learnloop.http_settings import tls
from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.errors import BadGateway, Unavailable
from learnloop_service.app.http.openai_errors import openai_error
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.lost_connections import WatchedTransport, keepalive
from learnloop_service.training.rollout.http_transport import AiohttpTransport

Result = TypeVar("Result")
DEADLINE_S = 600.0
"""Maximum duration of a whole reply."""
_LIMITS = httpx.Limits(max_connections=1_000, max_keepalive_connections=50)
_CONNECT_S = 10.0
_FORWARDED_HEADERS = ("content-type", "retry-after")
_KEY_REFUSED = (401, 403)
"""Statuses with which a server refuses our key, as opposed to the caller's."""
CLIENT_DISCONNECTED = 499
"""Status of the reply to a client that has left."""

log = structlog.get_logger(__name__)


class NoAnswerInTime(BadGateway):
    """The model's server did not answer before the deadline."""

    status = 504
    title = "No answer in time"


@dataclass(frozen=True, slots=True)
class ChatProxy:
    """Forwards requests to all servers with one connection pool."""

    http: httpx.AsyncClient
    deadline_s: float

    async def chat(self, request: Request, endpoint: Endpoint, body: dict[str, Json]) -> Response:
        """Return the reply of the endpoint's model. Raises the errors of `forward`."""
        return await self.forward(request, endpoint, "/chat/completions", json={**body, "model": endpoint.model})

    async def forward(
        self,
        request: Request,
        endpoint: Endpoint,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **content: Any,
    ) -> Response:
        """Send a request with the same method to the endpoint's server and return the reply. `content` are httpx's
        parameters for the request. `deadline_s` applies to the whole reply (None: the deadline of chat completions).

        Raises BadGateway, NoAnswerInTime or Unavailable.
        """
        deadline_s = deadline_s or self.deadline_s
        deadline = asyncio.get_running_loop().time() + deadline_s
        outgoing = self.http.build_request(
            request.method,
            f"{endpoint.base_url}{path}",
            headers={
                "authorization": f"Bearer {endpoint.api_key}",
                "accept-encoding": "identity",
                **(headers or {}),
            },
            extensions={"watched": endpoint.remembers},
            **content,
        )
        try:
            async with asyncio.timeout_at(deadline):
                reply = await unless_disconnected(request, self.http.send(outgoing, stream=True))
        except TimeoutError:
            raise NoAnswerInTime(f"{endpoint.model} gave no answer within {deadline_s:.0f} s.") from None
        except httpx.TransportError as error:
            raise Unavailable(f"The server of the model is unreachable: {type(error).__name__}") from error
        if reply is None:
            return Response(status_code=CLIENT_DISCONNECTED)
        if reply.status_code in _KEY_REFUSED:
            await reply.aclose()
            log.error("a model's server refuses our key", server=endpoint.base_url, status=reply.status_code)
            raise BadGateway("The server of the model rejects the credentials of this service.")
        headers = {name: reply.headers[name] for name in _FORWARDED_HEADERS if name in reply.headers}
        return _StreamedReply(reply, deadline, headers)


@asynccontextmanager
async def open_proxy() -> AsyncIterator[ChatProxy]:
    """Open the proxy of a running service."""
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    plain = WatchedTransport(AiohttpTransport())
    encrypted = httpx.AsyncHTTPTransport(limits=_LIMITS, verify=tls(), trust_env=False, socket_options=keepalive())
    mounts = {"http://": plain, "https://": WatchedTransport(encrypted)}
    async with httpx.AsyncClient(timeout=timeout, limits=_LIMITS, mounts=mounts, trust_env=False) as http:
        yield ChatProxy(http, DEADLINE_S)


class _StreamedReply(StreamingResponse):
    """A reply being streamed. It ends at its deadline, even if the client does not read."""

    def __init__(self, reply: httpx.Response, deadline: float, headers: dict[str, str]) -> None:
        super().__init__(self._pieces(), reply.status_code, {**headers, "X-Accel-Buffering": "no"})
        self._reply = reply
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline + 1):
                    await super().__call__(scope, receive, send)
        finally:
            if isinstance(self.body_iterator, AsyncGenerator):  # so that a wrapper learns of the end
                await shielded(self.body_iterator.aclose())
            await self._reply.aclose()

    async def _pieces(self) -> AsyncIterator[bytes]:
        pieces = self._reply.aiter_raw()
        try:
            while True:
                async with asyncio.timeout_at(self._deadline):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
        except (TimeoutError, httpx.HTTPError) as error:
            log.warning("a reply broke off", error=repr(error))
            if not self._reply.headers.get("content-type", "").startswith("text/event-stream"):
                raise
            why = "the reply took too long" if isinstance(error, TimeoutError) else "the model's server broke off"
            yield _error_event(why)


def _error_event(why: str) -> bytes:
    """Return the event that reports an error in a stream. OpenAI's clients raise it."""
    return b"data: " + bytes(openai_error(502, why, code="reply_broken_off").body) + b"\n\n"


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result | None:
    """Return the result of the work, or cancel it and return None if the client disconnects first.

    The calling task does the work, as in asyncio.timeout. A separate task would have to be scheduled twice.
    """
    task, has_left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == 1:
            return None
        raise
    finally:
        watching.cancel()
        if has_left:
            task.uncancel()
