"""What a model's server streams."""

import json

import httpx

from app.gateway.upstream import Upstream
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
