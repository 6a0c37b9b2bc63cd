"""What servers that are not trusted may answer: no compressed body, and no more than was allowed."""

import httpx
import pytest

from learnloop_service.environment.bounded_http import (
    AnswerLimits,
    AnswerRefused,
    AnswerTooLarge,
    BoundedTransport,
    json_values,
)
from tests.fakes.hostile_provider import Answer, bomb, endless, endless_events, gigabyte, hostile_provider, saying

MOST_TAKEN = 32 * 2**20
"""Bytes. We take 1,000; the rest is in the buffers of two sockets."""
LIMITS = AnswerLimits(max_bytes=1_000, max_values=100)


async def _answer(answer: Answer, limits: AnswerLimits = LIMITS) -> bytes:
    transport = BoundedTransport(httpx.AsyncHTTPTransport(), limits)
    async with hostile_provider(answer) as server, httpx.AsyncClient(transport=transport, timeout=30) as client:
        try:
            return (await client.get(server.url)).content
        finally:
            assert "accept-encoding: identity" in server.heads[0].lower()
            assert server.accepted_bytes < MOST_TAKEN


@pytest.mark.parametrize("answer", [bomb, saying(b"x", content_encoding="identity, zstd")])
async def test_a_compressed_answer_is_refused(answer: Answer) -> None:
    with pytest.raises(AnswerRefused, match="the server's answer is compressed"):
        await _answer(answer)


@pytest.mark.parametrize("answer", [gigabyte, endless, endless_events, saying(b"x" * 1_001)])
async def test_a_large_answer_is_refused(answer: Answer) -> None:
    with pytest.raises(AnswerTooLarge, match="the server's answer has more than 1,000 bytes"):
        await _answer(answer)


async def test_an_answer_of_many_values_is_refused() -> None:
    with pytest.raises(AnswerTooLarge, match="the server's answer has more than 100 JSON values"):
        await _answer(saying(b"[" + b"[]," * 60 + b"[]]"))


async def test_any_other_answer_is_read() -> None:
    assert await _answer(saying(b"x" * 1_000)) == b"x" * 1_000
    assert await _answer(saying(b"[1, 2]", content_encoding="identity")) == b"[1, 2]"
    assert await _answer(saying(b"[]," * 300), AnswerLimits(1_000)) == b"[]," * 300


@pytest.mark.parametrize(("text", "most"), [(b"1", 1), (b"[]", 2), (b'{"a": [1, 2]}', 4), (b'"a, b"', 2)])
def test_json_values_are_never_fewer_than_were_counted(text: bytes, most: int) -> None:
    assert json_values(text) == most
