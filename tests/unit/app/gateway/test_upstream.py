"""What a model's server streams, and how it counts tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from learnloop_service.app.errors import BadGateway
from learnloop_service.app.gateway.upstream import ModelRefused, NoTokenCount, ServerAway, Upstream
from learnloop_service.app.model_registry.proxy import NoAnswerInTime
from learnloop_service.training.backends.base import Endpoint


@asynccontextmanager
async def answering(path: str, status: int, body: str) -> AsyncIterator[tuple[Upstream, Endpoint]]:
    """A server that answers so at that path, and who asks it."""

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer key"
        return web.Response(status=status, body=body.encode())

    model = web.Application()
    model.router.add_post(path, answer)
    async with TestServer(model) as server, aclosing(Upstream()) as upstream:
        yield upstream, Endpoint(str(server.make_url("/v1")), "key", "m")


async def test_a_text_may_hold_what_other_readers_take_for_the_end_of_a_line() -> None:
    """Servers may write them as they are: JSON allows it."""
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("one\u2028two", "three\u0085four")]
    lines = [f"data: {json.dumps(piece, ensure_ascii=False)}\r\n\r\n" for piece in chunks] + ["data: [DONE]\n\n"]
    async with answering("/v1/chat/completions", 200, "".join(lines)) as (upstream, endpoint):
        assert [chunk async for chunk in upstream.chunks(endpoint, {})] == chunks


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, '{"detail": "Not Found"}', NoTokenCount),
        (405, "", NoTokenCount),
        (404, '{"error": {"message": "no such model", "code": 404}}', ModelRefused),
        (200, '{"tokens": []}', BadGateway),
        (200, "7", BadGateway),
    ],
)
async def test_a_server_that_counts_no_tokens(status: int, body: str, error: type[Exception]) -> None:
    async with answering("/tokenize", status, body) as (upstream, endpoint):
        with pytest.raises(error):
            await upstream.count_tokens(endpoint, {})


async def test_a_full_context_has_openais_code_whatever_the_server_calls_it() -> None:
    message = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."
    body = json.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}})
    async with answering("/v1/chat/completions", 400, body) as (upstream, endpoint):
        with pytest.raises(ModelRefused, match="5000 input tokens") as refused:
            await upstream.complete(endpoint, {})
    assert refused.value.members() == {"code": "context_length_exceeded"}


@pytest.mark.parametrize("chunk", ["[]", "{", '{"choices": [1]}', '{"choices": [{"delta": "a"}]}', '{"usage": 3}'])
async def test_a_stream_of_something_else_is_a_bad_gateway(chunk: str) -> None:
    async with answering("/v1/chat/completions", 200, f"data: {chunk}\n\n") as (upstream, endpoint):
        with pytest.raises(BadGateway):
            [_ async for _ in upstream.chunks(endpoint, {})]


async def test_a_server_that_is_gone_is_away() -> None:
    async with answering("/v1/chat/completions", 200, "{}") as (_, endpoint):
        pass
    async with aclosing(Upstream()) as upstream:
        with pytest.raises(ServerAway, match="unreachable"):
            await upstream.complete(endpoint, {})


@pytest.mark.parametrize("begins", [False, True], ids=["no reply", "a stream that stops"])
async def test_no_reply_takes_longer_than_its_deadline(begins: bool) -> None:
    gone = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            reply = web.StreamResponse()
            if begins:
                await reply.prepare(request)
                await reply.write(b'data: {"choices": []}\n\n')
            await asyncio.Event().wait()
        finally:
            gone.set()
        return reply

    model = web.Application()
    model.router.add_post("/v1/chat/completions", answer)
    async with (
        TestServer(model, handler_cancellation=True) as server,
        aclosing(Upstream(deadline_s=0.2)) as upstream,
    ):
        endpoint = Endpoint(str(server.make_url("/v1")), "key", "m")
        with pytest.raises(NoAnswerInTime):
            [_ async for _ in upstream.chunks(endpoint, {})]
        await asyncio.wait_for(gone.wait(), 60)
        with pytest.raises(NoAnswerInTime):
            await upstream.complete(endpoint, {})
