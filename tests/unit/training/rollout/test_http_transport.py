"""HTTP over connections that are used again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from learnloop_service.training.rollout.http_transport import AiohttpTransport

_Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_OK = b"HTTP/1.1 200 OK\r\n"
_WHOLE = _OK + b"Content-Length: 4\r\n\r\nbody"


@asynccontextmanager
async def _connected(script: _Script) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client, and the URL of a server that runs the script for every connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with httpx.AsyncClient(transport=AiohttpTransport(), timeout=20) as client:
        yield client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


async def _heard(reader: asyncio.StreamReader) -> bool:
    """Whether a request without a body came."""
    try:
        await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    return True


def _says(*pieces: bytes) -> _Script:
    """What a server says to each request before it closes the connection."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _heard(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script


async def _keep_alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of a connection with the connection's own port."""
    port = str(writer.get_extra_info("peername")[1])
    while await _heard(reader):
        writer.write(_OK + f"Content-Length: {len(port)}\r\n\r\n{port}".encode())


async def test_connections_are_used_again_and_no_request_waits_for_another() -> None:
    async with _connected(_keep_alive) as (client, url):
        one_by_one = {(await client.get(url)).text for _ in range(9)}
        assert len(one_by_one) == 1
        at_once = {response.text for response in await asyncio.gather(*(client.get(url) for _ in range(8)))}
        assert len(at_once) == 8
        assert {response.text for response in await asyncio.gather(*(client.get(url) for _ in range(8)))} == at_once


@pytest.mark.parametrize(
    "pieces",
    [
        [_OK + b"Content-Length: 4\r\n\r\nbody"],
        [_OK + b"Content-", b"Length: 4\r\n\r\nbo", b"dy"],
        [_OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n", b"2\r\ndy\r\n0\r\n\r\n"],
        [_OK + b"\r\nbo", b"dy"],
        [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _OK + b"Content-Length: 4\r\n\r\nbody"],
    ],
)
async def test_every_form_of_a_body(pieces: Sequence[bytes]) -> None:
    async with _connected(_says(*pieces)) as (client, url):
        reply = await client.get(url)
        assert reply.status_code == 200
        assert reply.text == "body"
        assert "link" not in reply.headers


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"220 mail.example.org\r\n"],
        [_OK + b"Content-Length: 4\r\n\r\nbod"],
        [_OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n"],
        [_OK + b"Content-Length: 4\r\n\r\n", b"bod"],
        [_OK + b"X: " + b"x" * 200_000],
    ],
)
async def test_what_is_no_whole_answer_is_an_error(pieces: Sequence[bytes]) -> None:
    async with _connected(_says(*pieces)) as (client, url):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)


async def test_nobody_listens() -> None:
    async with _connected(_keep_alive) as (_, url):
        pass
    async with httpx.AsyncClient(transport=AiohttpTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_a_server_that_says_nothing_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _connected(silent) as (client, url):
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=0.05)


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    """By a POST, which is not sent a second time where the first was lost."""
    closed = asyncio.Event()

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _heard(reader)
        writer.write(_WHOLE)
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with _connected(closes) as (client, url):
        for _ in range(5):
            closed.clear()
            assert (await client.post(url)).text == "body"
            await closed.wait()
            for _ in range(2):  # the loop looks at its sockets again, where the end of the connection has arrived
                await asyncio.to_thread(int)


async def test_a_connection_that_the_server_will_close_is_not_used_again() -> None:
    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _heard(reader)
        writer.write(_OK + b"Connection: close\r\nContent-Length: 4\r\n\r\nbody")
        await reader.read()

    async with _connected(answers_once) as (client, url):
        for _ in range(2):
            assert (await client.get(url, timeout=5)).text == "body"


async def test_what_comes_unasked_is_nobodys_answer() -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await _heard(reader):
            writer.write(_WHOLE + _WHOLE)

    async with _connected(talkative) as (client, url):
        for _ in range(3):
            assert (await client.get(url)).text == "body"


async def test_a_server_hears_that_its_answer_is_not_wanted_any_more() -> None:
    gone = asyncio.Event()

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _heard(reader)
        writer.write(_OK + b"Content-Length: 4\r\n\r\nbo")
        assert not await reader.read()
        gone.set()

    async with _connected(begins) as (client, url):
        async with client.stream("GET", url) as reply:
            assert await anext(reply.aiter_raw()) == b"bo"
        await asyncio.wait_for(gone.wait(), 20)


async def test_nothing_is_sent_that_could_be_read_as_two_requests() -> None:
    async with _connected(_keep_alive) as (client, url):
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(url, headers={"a": "b\r\n\r\nGET / HTTP/1.1"})
