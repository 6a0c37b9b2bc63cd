"""The attacking clients of benchmarks/service/hostile_http.py, in a separate process; each attack is a coroutine.

    python -m benchmarks.service.hostile_clients NAME PORT SECONDS KEY RUN

KEY is a key of the attacker's project, RUN the id of a big run in it. Prints what the attack found as JSON.
"""

import asyncio
import json
import random
import resource
import string
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from environment.json_type import Json

MB = 1_000_000
_FINE = b"HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_ANSWER_S = 120.0
_GRACE_S = 5.0


@dataclass(frozen=True)
class Target:
    """Where and with which key to attack, and until when (monotonic time)."""

    port: int
    until: float
    key: str
    run_id: str

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def rest(self) -> None:
        """Sleep until the end of the attack."""
        await asyncio.sleep(max(0.0, self.until - time.monotonic()))

    def post(self, path: str, length: int, *, key: bool = True) -> bytes:
        """Build the head of a POST request."""
        authorization = f"Authorization: Bearer {self.key}\r\n".encode() if key else b""
        head = b"POST %s %s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % (path.encode(), _FINE, authorization, length)


async def quiet(target: Target) -> Json:
    """Do nothing; the baseline for the attacks."""
    await target.rest()


async def header_lines(target: Target) -> Json:
    """Send requests with 20,000 header lines each, four at a time."""
    return await _again(target, b"GET /health/live " + _FINE + b"a:\r\n" * 20_000 + b"\r\n")


async def trickled_headers(target: Target) -> Json:
    """Send 20 requests of 5,000 header lines, and add more lines to them at 3 kB a second in total."""

    async def one() -> None:
        while target.goes_on:
            with suppress(OSError):
                _, writer = await target.connect()
                writer.write(b"GET /health/live " + _FINE + b"a:\r\n" * 5_000)
                while target.goes_on:
                    writer.write(b"a:\r\n" * 40)
                    await writer.drain()
                    await asyncio.sleep(1.0)

    await asyncio.gather(*(one() for _ in range(20)))


async def unread_replies(target: Target) -> Json:
    """Send 25 MB of requests on one connection without reading the replies."""
    _, writer = await target.connect()
    request, sent = b"GET /health/live " + _FINE + b"\r\n", 0
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(target.until - time.monotonic()):
            while sent < 25 * MB:
                writer.write(request * 1_000)
                await writer.drain()
                sent += len(request) * 1_000
    await target.rest()
    return {"sent_mb": round(sent / MB, 1)}


async def endless_trailer(target: Target) -> Json:
    """Send four chunked requests whose trailers never end."""

    async def one() -> int:
        sent = 0
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(target.until - time.monotonic()):
                _, writer = await target.connect()
                writer.write(b"POST /health/live " + _FINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
                while True:
                    writer.write(b"a: b\r\n" * 100)
                    await writer.drain()
                    sent += 600
                    await asyncio.sleep(0)
        return sent

    return {"sent_mb": round(sum(await asyncio.gather(*(one() for _ in range(4)))) / MB, 2)}


async def blank_lines(target: Target) -> Json:
    """Make one request on each of 50 connections, then send nothing but a blank line a second."""

    async def one() -> float:
        began = time.monotonic()
        reader, writer = await target.connect()
        writer.write(b"GET /health/live " + _FINE + b"\r\n")
        await reader.readuntil(b"}")
        with suppress(OSError):
            while target.goes_on and not reader.at_eof():
                writer.write(b"\r\n")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 1.0)
        return time.monotonic() - began

    return {"held_s": round(max(await asyncio.gather(*(one() for _ in range(50)))), 1)}


async def absent_body(target: Target) -> Json:
    """Announce a body that never comes in 100 requests for pages that need none; count the answers."""

    async def one(path: bytes) -> bool:
        reader, writer = await target.connect()
        writer.write(b"GET %s %sContent-Length: 100\r\n\r\n" % (path, _FINE))
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(target.until - time.monotonic()):
                return (await reader.read(12)).startswith(b"HTTP/1.1 200")
        return False

    paths = (b"/health/live", b"/docs", b"/openapi.json", b"/")
    answered = await asyncio.gather(*(one(paths[number % 3]) for number in range(100)))
    return {"answered": sum(answered)}


async def keyless_bodies(target: Target) -> Json:
    """Send 400 unfinished bodies of 999 kB without a key."""

    async def one() -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(target.until - time.monotonic()):
                _, writer = await target.connect()
                writer.write(target.post("/docs", MB, key=False) + b" " * 999_000)
                await writer.drain()
                await target.rest()

    await asyncio.gather(*(one() for _ in range(400)))


async def idle_connections(target: Target) -> Json:
    """Hold 991 idle connections, and reopen those that end."""

    async def one() -> None:
        while target.goes_on:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(target.until - time.monotonic()):
                    reader, _ = await target.connect()
                    await reader.read(1)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(one() for _ in range(991)))


async def wrong_keys(target: Target) -> Json:
    """Send 530 requests a second, each with a different invalid key."""

    async def one() -> Counter[str]:
        statuses: Counter[str] = Counter()
        while target.goes_on:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await target.connect()
                while target.goes_on:
                    key = "ll_" + "".join(random.choices(string.ascii_letters, k=43))
                    writer.write(b"GET /runs %sAuthorization: Bearer %s\r\n\r\n" % (_FINE, key.encode()))
                    head = await reader.readuntil(b"\r\n\r\n")
                    statuses[head[9:12].decode()] += 1
                    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                    await reader.readexactly(int(length.partition(b":")[2]))
                    await asyncio.sleep(20 / 530)
        return statuses

    return dict(sum(await asyncio.gather(*(one() for _ in range(20))), Counter()))


async def verify(target: Target) -> Json:
    """Request 40 recomputations of a big run simultaneously."""
    path, authorization = f"/runs/{target.run_id}/verify".encode(), target.key.encode()
    request = b"GET %s %sAuthorization: Bearer %s\r\nConnection: close\r\n\r\n" % (path, _FINE, authorization)
    return await _once(target, [request] * 40)


async def graphs(target: Target) -> Json:
    """Send eight graphs of 30 MB simultaneously."""
    body = _graph()
    return await _once(target, [target.post("/graphs", len(body)) + body] * 8)


async def bad_graph(target: Target) -> Json:
    """Send a graph of 30 MB with a bad field at its end."""
    body = _graph()[:-2] + b', {"id": 7}]}'
    return await _once(target, [target.post("/graphs", len(body)) + body])


async def unfinished_graphs(target: Target) -> Json:
    """Send 60 graphs of 30 MB without their last byte."""
    body = _graph()

    async def one() -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(target.until - time.monotonic()):
                _, writer = await target.connect()
                writer.write(target.post("/graphs", len(body) + 1))
                writer.write(body)
                await writer.drain()
                await target.rest()

    await asyncio.gather(*(one() for _ in range(60)))


async def many_elements(target: Target) -> Json:
    """Send bodies of 999 kB with half a million elements, four at a time."""
    body = b'{"events": [' + b"1," * 499_000 + b"1]}"
    return await _again(target, target.post("/feedback", len(body)) + body)


async def many_fields(target: Target) -> Json:
    """Send bodies of 999 kB with 90,000 fields, four at a time."""
    body = b"{" + b",".join(b'"f%05d":1' % number for number in range(90_000)) + b"}"
    return await _again(target, target.post("/feedback", len(body)) + body)


ATTACKS: dict[str, Callable[[Target], Awaitable[Json]]] = {
    attack.__name__: attack
    for attack in (
        quiet,
        header_lines,
        trickled_headers,
        unread_replies,
        endless_trailer,
        blank_lines,
        absent_body,
        keyless_bodies,
        idle_connections,
        wrong_keys,
        verify,
        graphs,
        bad_graph,
        unfinished_graphs,
        many_elements,
        many_fields,
    )
}


def _graph() -> bytes:
    text = "A fact about the product, the customer and what they do. " * 53
    nodes: list[Json] = [{"id": f"fact-{number}", "content": text} for number in range(9_998)]
    edge = {"target_id": "feature", "relationship": "solved by", "rationale": ""}
    nodes += [
        {"id": "job", "content": "Customer Job: report", "edge": [edge]},
        {"id": "feature", "content": "Product Feature: tables"},
    ]
    return json.dumps({"graph": nodes}).encode()


async def _again(target: Target, request: bytes) -> Json:
    """Repeat the request, four at a time, each on a new connection; count the statuses."""

    async def one() -> Counter[str]:
        statuses: Counter[str] = Counter()
        while target.goes_on:
            statuses[await _status(target, request, target.until - time.monotonic() + _GRACE_S)] += 1
        return statuses

    return dict(sum(await asyncio.gather(*(one() for _ in range(4))), Counter()))


async def _once(target: Target, requests: list[bytes]) -> Json:
    """Send all requests simultaneously; return the counts of statuses and the seconds it took."""
    began = time.monotonic()
    statuses = Counter(await asyncio.gather(*(_status(target, request) for request in requests)))
    return {**statuses, "seconds": round(time.monotonic() - began, 1)}


async def _status(target: Target, request: bytes, patience_s: float = _ANSWER_S) -> str:
    writer = None
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await target.connect()
            writer.write(request)
            with suppress(ConnectionError):  # the answer can come before the whole request is read
                await writer.drain()
            return (await reader.read(12))[9:12].decode() or "closed"
    except (OSError, TimeoutError) as error:
        return type(error).__name__
    finally:
        if writer is not None:
            writer.close()


def main() -> None:
    name, port, seconds, key, run_id = sys.argv[1:]
    open_as_many_files(None)
    target = Target(int(port), time.monotonic() + float(seconds), key, run_id)
    print(json.dumps(asyncio.run(_attack(ATTACKS[name], target))))


def open_as_many_files(as_many: int | None) -> None:
    """Set how many files this process and its children can open; None means as many as the hard limit allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (as_many or most, most))


async def _attack(attack: Callable[[Target], Awaitable[Json]], target: Target) -> Json:
    return await attack(target)


if __name__ == "__main__":
    main()
