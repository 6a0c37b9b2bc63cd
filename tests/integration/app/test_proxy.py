"""What the proxy does between a client and a model's server, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from learnloop_service.app import errors
from learnloop_service.app.http.openai_errors import ModelErrors
from learnloop_service.app.model_registry.proxy import ChatProxy, open_proxy
from learnloop_service.training.backends.base import Endpoint
from tests.conditions import until

Script = Callable[["ModelServer", asyncio.StreamWriter], Awaitable[None]]
_FAR_MORE_THAN_BUFFERS = 200_000_000
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class ModelServer:
    """Somebody else's server, which does what the script says with each connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.sent = 0
        self.heads: list[bytes] = []
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()
        """The other side closed the connection."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        running = asyncio.ensure_future(self._script(self, writer))
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            pass
        finally:
            self.left.set()
            running.cancel()
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()
        self.sent += len(data)


@asynccontextmanager
async def _proxied(script: Script, deadline_s: float = 20.0) -> AsyncIterator[tuple[str, ModelServer]]:
    """The URL of an application that forwards to such a server."""
    model = ModelServer(script)
    app = FastAPI()
    app.add_middleware(ModelErrors)
    errors.install(app)
    listening = await asyncio.start_server(model.handle, "127.0.0.1", 0)
    endpoint = Endpoint(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", "its-key", "theirs@3")

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        proxy: ChatProxy = app.state.proxy
        return await proxy.chat(request, endpoint, await request.json())

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    try:
        async with listening, open_proxy() as proxy:
            app.state.proxy = ChatProxy(proxy.http, deadline_s)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/chat/completions", model
            model.go_on.set()
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield client


async def test_each_piece_comes_when_it_was_said(http: httpx.AsyncClient) -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, _STREAM + b"data: one\n\n")
        await server.go_on.wait()
        await server.send(writer, b"data: [DONE]\n\n")
        writer.close()

    async with (
        _proxied(say) as (url, server),
        http.stream("POST", url, json={"model": "mine"}, headers={"authorization": "Bearer mine"}) as reply,
    ):
        pieces = reply.aiter_text()
        assert await anext(pieces) == "data: one\n\n"  # although the server has not said the rest
        assert reply.headers["content-type"] == "text/event-stream"
        server.go_on.set()
        assert await anext(pieces) == "data: [DONE]\n\n"
        assert b"authorization: Bearer its-key" in server.heads[0]
        assert b"Bearer mine" not in server.heads[0]


async def test_a_client_that_does_not_read_holds_the_server_back() -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, _STREAM)
        with suppress(TimeoutError):
            while server.sent < _FAR_MORE_THAN_BUFFERS:
                async with asyncio.timeout(1):  # a write that waits so long is held back
                    await server.send(writer, b"data: " + b"x" * 100_000 + b"\n\n")
        server.go_on.set()

    async with _proxied(say) as (url, server):
        writer = await _asks_and_does_not_read(url)
        await server.go_on.wait()
        assert 0 < server.sent < _FAR_MORE_THAN_BUFFERS
        writer.transport.abort()
        async with asyncio.timeout(60):
            await server.left.wait()


@pytest.mark.parametrize("said", [b"", _STREAM + b"data: one\n\n"])
async def test_the_server_hears_that_the_client_left(http: httpx.AsyncClient, said: bytes) -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, said)
        server.go_on.set()

    async with _proxied(say) as (url, server):
        asking = asyncio.create_task(_all_of(http, url))
        await server.go_on.wait()
        asking.cancel()
        async with asyncio.timeout(60):
            await server.left.wait()


async def _asks_and_does_not_read(url: str) -> asyncio.StreamWriter:
    where = httpx.URL(url)
    _, writer = await asyncio.open_connection(where.host, where.port, limit=1_024)
    writer.write(f"POST {where.path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    return writer


async def _all_of(http: httpx.AsyncClient, url: str) -> str:
    return (await http.post(url, json={})).text


async def test_a_server_that_dies_in_the_middle(http: httpx.AsyncClient) -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, _STREAM.replace(b"Connection: close", b"Content-Length: 999") + b"data: one\n\n")
        await server.go_on.wait()
        writer.transport.abort()

    async with _proxied(say) as (url, server), http.stream("POST", url, json={}) as reply:
        pieces = reply.aiter_text()
        assert await anext(pieces) == "data: one\n\n"
        server.go_on.set()
        rest = "".join([piece async for piece in pieces])
    assert rest.startswith("data: {")
    assert "reply_broken_off" in rest


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_refuses_our_key_is_not_the_callers_fault(http: httpx.AsyncClient, status: int) -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, b"HTTP/1.1 %d x\r\nContent-Length: 6\r\n\r\nsecret" % status)

    async with _proxied(say) as (url, _):
        reply = await http.post(url, json={})
    assert reply.status_code == 502
    assert reply.json()["error"]["type"] == "server_error"
    assert "secret" not in reply.text


async def test_a_client_that_never_reads_is_let_go_at_the_deadline() -> None:
    async def say(server: ModelServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, _STREAM)
        while True:
            await server.send(writer, b"x" * 100_000)

    async with _proxied(say, deadline_s=1.0) as (url, server):
        writer = await _asks_and_does_not_read(url)
        async with asyncio.timeout(60):
            await server.left.wait()
        writer.transport.abort()
