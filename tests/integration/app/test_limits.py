"""What one caller may take of the service: requests, bytes before a request, and time to send them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from learnloop_service.app.auth.keys import new_key
from learnloop_service.app.http.connections import Connections
from learnloop_service.app.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, BoundedHttp
from learnloop_service.app.main import create_app, server_config
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import keyed
from tests.integration.app.served import served, settings_for

_RATE = {"rate_per_s": 0.001, "rate_burst": 3}
"""Slow enough that no test sees another token."""


def _refused(response: httpx.Response) -> None:
    assert response.status_code == 429
    assert response.headers["content-type"] == "application/problem+json"
    assert 900 < int(response.headers["retry-after"]) <= 1_000


async def test_each_key_has_its_own_rate(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, **_RATE) as service:
        hasty, calm = await service.headers(), await service.headers()
        statuses = [(await service.client.get("/runs", headers=hasty)).status_code for _ in range(3)]
        assert statuses == [200, 200, 200]
        _refused(await service.client.get("/runs", headers=hasty))
        _refused(await service.client.post("/learn-loop", headers=hasty, json={}))
        assert (await service.client.get("/runs", headers=calm)).status_code == 200
        assert (await service.client.get("/health/live", headers=hasty)).status_code == 200


async def test_requests_without_a_good_key_use_up_nobodys_rate(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, **_RATE) as service:
        new = await service.new()
        for _ in range(5):
            forged = {"authorization": f"Bearer {new.key[:-1]}-"}
            assert (await service.client.get("/runs", headers=forged)).status_code == 401
        key_headers = {"authorization": f"Bearer {new.key}"}
        assert (await service.client.get("/runs", headers=key_headers)).status_code == 200


async def test_wrong_keys_of_one_address_are_limited(data_dir: Path, database_url: str) -> None:
    """Keys that were right lately still work, and no other one is looked up."""
    async with keyed(data_dir, database_url, failed_keys_per_minute=0.001) as service:
        key_headers, other = await service.headers(), await service.headers()
        assert (await service.client.get("/runs", headers=key_headers)).status_code == 200
        wrong = [{"authorization": f"Bearer {new_key()}"} for _ in range(31)]
        statuses = [(await service.client.get("/runs", headers=forged)).status_code for forged in wrong]
        assert statuses == [401] * 30 + [429]
        assert (await service.client.get("/runs", headers=key_headers)).status_code == 200
        refused = await service.client.get("/runs", headers=other)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0


async def test_there_is_no_rate_on_loopback_and_none_if_it_is_set_to_0(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, **_RATE), ScriptedLoop()) as client:
        assert {(await client.get("/runs")).status_code for _ in range(5)} == {200}
    async with keyed(data_dir, database_url, **_RATE | {"rate_per_s": 0}) as service:
        headers = await service.headers()
        assert {(await service.client.get("/runs", headers=headers)).status_code for _ in range(5)} == {200}


@asynccontextmanager
async def _listening(data_dir: Path) -> AsyncIterator[int]:
    """The port of a server configured as `serve` does it. No database: only public paths are asked for."""
    settings = settings_for(data_dir, None)
    server = uvicorn.Server(server_config(create_app(settings), settings))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def _reply(port: int, *parts: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""  # closed while we were still sending
    finally:
        writer.close()


def _head(padding: int) -> bytes:
    return b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-A: %s\r\n\r\n" % (b"x" * padding)


async def test_headers_are_bounded(data_dir: Path) -> None:
    async with _listening(data_dir) as port:
        assert (await _reply(port, _head(60_000))).startswith(b"HTTP/1.1 200")
        assert (await _reply(port, _head(MAX_HEAD_BYTES))).startswith(b"HTTP/1.1 400")
        many = b"".join(b"X-%d: a\r\n" % number for number in range(10_000))
        assert (await _reply(port, _head(0)[:-2] + many + b"\r\n")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"a" * 16_384),
        (b"GET / HTTP/1.1\r\nX-A: ", b"a" * 16_384),
        (b"GET / HTTP/1.1\r\n", b"X-A: a\r\n" * 2_048),
    ],
)
async def test_a_head_without_end_is_cut_off(data_dir: Path, begin: bytes, piece: bytes) -> None:
    async with _listening(data_dir) as port:
        reply = await _reply(port, begin, *[piece] * 5_000)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")


async def test_100_slow_connections_end_and_keep_nobody_out(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "head_s", 0.5)
    async with _listening(data_dir) as port:
        slow = [asyncio.create_task(_reply(port, b"GET / HTTP/1.1\r\nHost:")) for _ in range(50)]
        silent = [asyncio.create_task(_reply(port)) for _ in range(50)]
        assert (await _reply(port, _head(0))).startswith(b"HTTP/1.1 200")
        assert set(await asyncio.gather(*slow, *silent)) == {b""}


# From here on: a small application under the same protocol, so that each bound is seen alone.


@dataclass
class _Served:
    """A server under BoundedHttp."""

    port: int
    server: uvicorn.Server

    @property
    def connections(self) -> list[BoundedHttp]:
        return cast(list[BoundedHttp], list(self.server.server_state.connections))


@asynccontextmanager
async def _bounded(app: Any, limits: tuple[int, ...] = (100,), **config: Any) -> AsyncIterator[_Served]:
    protocol: Any = partial(BoundedHttp, connections=Connections(*limits))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            port=0,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
            **config,
        )
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield _Served(server.servers[0].sockets[0].getsockname()[1], server)
    finally:
        server.should_exit = True
        await serving


async def _ok(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse(scope["path"])(scope, receive, send)


async def _whole_body(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


_GET = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
_LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("hosts", "version", "status"),
    [
        (b"Host: a\r\n", b"1.1", b"200"),
        (b"Host:\r\n", b"1.1", b"200"),
        (b"", b"1.1", b"400"),
        (b"", b"1.0", b"200"),
        (b"Host: a\r\nHost: a\r\n", b"1.1", b"400"),
        (b"Host: a\r\nhost: b\r\n", b"1.0", b"400"),
    ],
)
async def test_a_request_has_one_host(hosts: bytes, version: bytes, status: bytes) -> None:
    async with _bounded(_ok) as running:
        reply = await _reply(running.port, b"GET / HTTP/%s\r\n%sConnection: close\r\n\r\n" % (version, hosts))
    assert reply.split()[1] == status


async def test_the_number_of_headers_is_bounded() -> None:
    async with _bounded(_ok) as running:
        more = b"a:\r\n" * (MAX_HEADERS - 2)
        assert (await _reply(running.port, _LAST[:-2] + more + b"\r\n")).startswith(b"HTTP/1.1 200")
        assert (await _reply(running.port, _LAST[:-2] + more + b"a:\r\n\r\n")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("piece", [b"a: b\r\n", b"a: " + b"b" * 10_000])
async def test_trailers_are_bounded(piece: bytes) -> None:
    """Many, and one without end."""
    async with _bounded(_whole_body) as running:
        begin = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        reply = await _reply(running.port, begin, *[piece] * 10_000)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")


async def test_a_chunk_extension_is_bounded() -> None:
    async with _bounded(_whole_body) as running:
        begin = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;"
        reply = await _reply(running.port, begin, *[b"a" * 10_000] * 10_000)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")


async def test_small_chunks_are_taken() -> None:
    async with _bounded(_whole_body) as running:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"1\r\na\r\n" * 50_000 + b"0\r\nX-Trailer: a\r\n\r\n"
        assert (await _reply(running.port, head, body)).endswith(b"50000")


async def test_requests_wait_unparsed_until_those_before_them_are_answered() -> None:
    """However many are sent at once, the server has one: each reply of 100 kB has to be read first."""
    waiting: list[int] = []

    async def large(scope: Any, receive: Any, send: Any) -> None:
        waiting.extend(len(connection.pipeline) for connection in running.connections)
        await PlainTextResponse(scope["path"].ljust(100_000))(scope, receive, send)

    async with _bounded(large) as running:
        requests = b"".join(_GET % b"/%d" % number for number in range(1_000)) + _LAST
        replies = (await _reply(running.port, requests)).split(b"HTTP/1.1 200 OK")[1:]
    bodies = [reply.partition(b"\r\n\r\n")[2].strip() for reply in replies]
    assert bodies == [b"/%d" % number for number in range(1_000)] + [b"/last"]
    assert max(waiting) == 0


async def test_pipelined_requests_with_bodies_are_all_answered() -> None:
    async with _bounded(_whole_body) as running:
        post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"
        bodies = [b"\r\n\r\n" * 100, b"GET / HTTP/1.1\r\n\r\n", b"", b"x" * 100_000, b"\r\n", b"a\r\n\r"]
        reply = await _reply(running.port, b"".join(post % (len(body), body) for body in bodies) + _LAST)
    lengths = [part.partition(b"\r\n\r\n")[2] for part in reply.split(b"HTTP/1.1 200 OK")[1:]]
    assert lengths == [str(len(body)).encode() for body in bodies] + [b"0"]


async def test_a_reply_that_is_not_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "unread_s", 0.2)

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while running.connections:
            await send({"type": "http.response.body", "body": b"a" * 65_536, "more_body": True})

    async with _bounded(endless) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(_GET % b"/")
        await until(lambda: running.connections)
        await until(lambda: not running.connections)
        writer.close()


async def test_blank_lines_keep_no_connection_open() -> None:
    async with _bounded(_ok, timeout_keep_alive=1) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"\r\n" + _GET % b"/first")
        await reader.readuntil(b"/first")
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"\r\n")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.05)
        writer.close()


async def test_a_body_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "body_s", 0.2)
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    async with _bounded(_whole_body) as running:
        assert (await _reply(running.port, post)).startswith(b"HTTP/1.1 408")
        assert (await _reply(running.port, post, b"a" * 50)).startswith(b"HTTP/1.1 408")


async def test_a_body_has_the_time_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its last byte longer than a body without a byte may take."""
    monkeypatch.setattr(BoundedHttp, "body_s", 0.2)
    monkeypatch.setattr(BoundedHttp, "body_bytes_per_s", 1)
    async with _bounded(_whole_body) as running:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 100\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(head + b"a" * 99)
        assert (await _reply(running.port, head)).startswith(b"HTTP/1.1 408")
        writer.write(b"a")
        assert (await reader.read()).endswith(b"100")
        writer.close()


async def test_the_next_head_has_its_time_after_a_slow_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "head_s", 0.2)
    go_on = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await go_on.wait()
        await _ok(scope, receive, send)

    async with _bounded(slow) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(_GET % b"/slow" + _LAST[:10])
        assert await _reply(running.port, b"GET /") == b""  # its time is over
        go_on.set()
        await reader.readuntil(b"/slow")
        writer.write(_LAST[10:])
        assert (await reader.read()).endswith(b"/last")
        writer.close()


async def test_what_needs_no_body_does_not_wait_for_it(data_dir: Path) -> None:
    async with _listening(data_dir) as port:
        for method, path in ((b"GET", b"/health/live"), (b"GET", b"/docs"), (b"POST", b"/health/live")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" % (method, path))
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"\r\n")).split()[1] == (b"200" if method == b"GET" else b"405")
            writer.close()


async def test_a_body_that_nobody_reads_ends_the_connection() -> None:
    """Its request is answered; so much of it is let by, and no more."""
    async with _bounded(_ok) as running:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
        reply = await _reply(running.port, head, *[b"a" * 65_536] * 1_000)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 200")


async def test_idle_connections_make_room() -> None:
    async with _bounded(_ok, (3,)) as running:
        idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(10)]
        assert (await _reply(running.port, _LAST)).endswith(b"/last")
        await until(lambda: len(running.connections) <= 3)
        for _, writer in idle:
            writer.close()


async def test_beyond_the_limit_the_health_is_still_told() -> None:
    may_answer = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/held":
            await may_answer.wait()
        await _ok(scope, receive, send)

    async with _bounded(waits, (3,)) as running:
        busy = [asyncio.create_task(_reply(running.port, _GET % b"/held")) for _ in range(3)]
        await until(lambda: len([connection for connection in running.connections if connection.cycle]) == 3)
        assert (await _reply(running.port, _LAST)).startswith(b"HTTP/1.1 503")
        for _ in range(50):
            assert (await _reply(running.port, _GET % b"/health/live")).endswith(b"/health/live")
        may_answer.set()
        for connection in running.connections:
            connection.transport.close()
        await asyncio.wait(busy)


async def test_one_address_has_its_own_limit() -> None:
    async with _bounded(_ok, (10, 2)) as running:
        other, other_writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
        for _ in range(5):
            await asyncio.open_connection("127.0.0.1", running.port)
        other_writer.write(_LAST)
        assert (await other.read()).endswith(b"/last")
        await until(lambda: len(running.connections) <= 2)
        other_writer.close()
