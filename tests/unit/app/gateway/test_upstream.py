"""What a model's server streams, and how it counts tokens."""

import json

import httpx
import pytest

from app.errors import BadGateway
from app.gateway.upstream import ModelRefused, NoTokenCount, Upstream
from training.backends.base import Endpoint


async def test_a_text_may_hold_what_other_readers_take_for_the_end_of_a_line() -> None:
    """Servers may write them as they are: JSON allows it."""
    told = [{"choices": [{"delta": {"content": text}}]} for text in ("one\u2028two", "three\u0085four")]
    lines = [f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in told] + ["data: [DONE]\n\n"]

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content="".join(lines).encode())

    async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as http:
        chunks = [chunk async for chunk in Upstream(http).chunks(Endpoint("http://model/v1", "key", "m"), {})]
    assert chunks == told


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (httpx.Response(404, json={"detail": "Not Found"}), NoTokenCount),
        (httpx.Response(405), NoTokenCount),
        (httpx.Response(404, json={"error": {"message": "no such model", "code": 404}}), ModelRefused),
        (httpx.Response(200, json={"tokens": []}), BadGateway),
        (httpx.Response(200, text="7"), BadGateway),
    ],
)
async def test_a_server_that_counts_no_tokens(reply: httpx.Response, error: type[Exception]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://model/tokenize"
        return reply

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        with pytest.raises(error):
            await Upstream(http).count_tokens(Endpoint("http://model/v1", "key", "m"), {})


@pytest.mark.parametrize("chunk", ["[]", "{", '{"choices": [1]}', '{"choices": [{"delta": "a"}]}', '{"usage": 3}'])
async def test_a_stream_of_something_else_is_a_bad_gateway(chunk: str) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=f"data: {chunk}\n\n".encode())

    async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as http:
        with pytest.raises(BadGateway):
            [_ async for _ in Upstream(http).chunks(Endpoint("http://model/v1", "key", "m"), {})]
