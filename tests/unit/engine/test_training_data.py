"""Training data behind a URL: whom the engine asks, and what it takes from them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from learnloop_service.training.engine.http.errors import ApiError
from learnloop_service.training.engine.http.training_data import TrainingData

LINES = b'{"messages": [{"role": "assistant", "content": "a"}]}\n\n{"messages": []}\n'
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class _Host:
    """A web server with one reply; it counts who connects."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.connections = 0
        self.name = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            if isinstance(self.reply, bytes):
                writer.write(self.reply)
                await writer.drain()
            else:
                await self.reply(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def _host(reply: Reply = _ok(LINES)) -> AsyncIterator[_Host]:  # noqa: B008 - bytes
    host = _Host(reply)
    server = await asyncio.start_server(host.handle, "127.0.0.1", 0)
    host.name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield host


def _data(tmp_path: Path, *hosts: str, max_bytes: int = 10_000, fetch_s: float = 20.0) -> TrainingData:
    return TrainingData(tmp_path, max_bytes, frozenset(hosts), fetch_s)


async def test_a_host_that_is_allowed(tmp_path: Path) -> None:
    async with _host() as host:
        read = await _data(tmp_path, host.name).read(f"http://{host.name}/data.jsonl?signature=x")
    assert read == [{"messages": [{"role": "assistant", "content": "a"}]}, {"messages": []}]


async def test_no_other_host_is_asked(tmp_path: Path) -> None:
    async with _host() as host, _host() as other:
        port = host.name.partition(":")[2]
        data = _data(tmp_path, other.name, "data.example")
        for url in (
            f"http://{host.name}/data.jsonl",
            f"http://{other.name}@{host.name}/data.jsonl",
            f"http://{host.name}#@{other.name}/",
            f"http://{host.name}\\@{other.name}/",
            f"http://localhost:{port}/",
            f"http://data.example:{port}/",
            f"http://data.example@{host.name}/",
            f"ftp://{other.name}/",
            f"gopher://{other.name}/",
            f"file://{other.name}/data.jsonl",
            "http:///data.jsonl",
            "http://[",
            "",
        ):
            with pytest.raises(ApiError) as refused:
                await data.read(url)
            assert refused.value.status == 400, url
            assert refused.value.param == "training_data_url", url
        assert host.connections == other.connections == 0


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with _host() as inner:
        there = f"HTTP/1.1 302 x\r\nLocation: http://{inner.name}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with _host(there) as host:
            with pytest.raises(ApiError, match="answered 302") as refused:
                await _data(tmp_path, host.name, inner.name).read(f"http://{host.name}/")
        assert refused.value.status == 502
        assert inner.connections == 0


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        (_ok(b"x" * 10_001), 413, "larger than 10000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 502, "answer is compressed"),
        (_ok(b'{"messages": '), 400, "not JSONL"),
        (_ok(b"[" * 9_000), 400, "not JSONL"),
        (b"HTTP/1.1 404 x\r\nContent-Length: 6\r\n\r\nsecret", 502, "answered 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", 502, "RemoteProtocolError"),
        (b"nonsense\r\n\r\n", 502, "RemoteProtocolError"),
    ],
)
async def test_what_a_host_may_answer(tmp_path: Path, reply: bytes, status: int, text: str) -> None:
    async with _host(reply) as host:
        with pytest.raises(ApiError, match=text) as refused:
            await _data(tmp_path, host.name).read(f"http://{host.name}/")
    assert refused.value.status == status
    assert "secret" not in str(refused.value)


async def test_a_host_that_never_ends(tmp_path: Path) -> None:
    async def for_ever(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"\n" * 100)
            await writer.drain()

    async def hang(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with _host(for_ever) as host:
        with pytest.raises(ApiError, match="larger"):
            await _data(tmp_path, host.name).read(f"http://{host.name}/")
    async with _host(hang) as host:
        with pytest.raises(ApiError, match="took longer"):
            await _data(tmp_path, host.name, fetch_s=0.05).read(f"http://{host.name}/")


async def test_a_file_of_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "some data.jsonl").write_bytes(LINES)
    assert len(await _data(tmp_path).read(f"file://{tmp_path}/some%20data.jsonl")) == 2
    with pytest.raises(ApiError, match="larger"):
        await _data(tmp_path, max_bytes=10).read(f"file://{tmp_path}/some%20data.jsonl")
    with pytest.raises(ApiError, match="cannot be read"):
        await _data(tmp_path).read(f"file://{tmp_path}/a%00b")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_only_line_feeds_end_a_conversation(tmp_path: Path, end: str) -> None:
    """A carriage return alone is white space between the values of JSON; the separators of Unicode are text."""
    lines = ['{"messages":\r[]}', '{"messages": ["one\u2028two\u2029three\u0085"]}']
    (tmp_path / "data.jsonl").write_bytes(end.join([*lines, ""]).encode())
    read = await _data(tmp_path).read(f"file://{tmp_path}/data.jsonl")
    assert read == [{"messages": []}, {"messages": ["one\u2028two\u2029three\u0085"]}]
