"""How steps are performed: both clients alike."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from learnloop import AsyncLearnloop, Learnloop

SAID = "a line\u2028that\x85is\x0bone, über"
EVENTS = [{"seq": 1, "data": {"error": SAID}}, {"seq": 2, "data": {}}]


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body of single bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def __iter__(self) -> Iterator[bytes]:
        return (bytes([byte]) for byte in self.body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def answer(request: httpx.Request) -> httpx.Response:
    after = int(request.headers["last-event-id"])
    events = [event for event in EVENTS if event["seq"] > after]  # type: ignore[operator]
    if not events:
        return httpx.Response(204)
    text = "".join(f"id: {event['seq']}\r\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    return httpx.Response(200, stream=Pieces(text.encode()))


async def asynchronous() -> list[Any]:
    async with AsyncLearnloop("http://service", transport=httpx.MockTransport(answer)) as client:
        return [event async for event in client.run("r").events()]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_line_ends_where_the_service_ends_it(kind: str) -> None:
    """Other characters that end lines of text can stand in a message."""
    if kind == "async":
        assert asyncio.run(asynchronous()) == EVENTS
        return
    with Learnloop("http://service", transport=httpx.MockTransport(answer)) as client:
        assert list(client.run("r").events()) == EVENTS
