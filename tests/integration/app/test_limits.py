"""What one caller may take of the service: requests, bytes before a request, and time to send them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from app.http.header_limits import MAX_HEAD_BYTES, BoundedHttp
from app.main import create_app, server_config
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import keyed
from tests.integration.app.served import served, settings_for

_RATE = {"rate_per_s": 0.001, "rate_burst": 3}
"""So slow that no test sees another token."""


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
        mine = {"authorization": f"Bearer {new.key}"}
        assert (await service.client.get("/runs", headers=mine)).status_code == 200


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
