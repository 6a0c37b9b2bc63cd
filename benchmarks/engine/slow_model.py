"""A stand-in for an engine on another machine: it replies after a delay and computes nothing.

It runs in a separate process and implements as much of the engine's API as a session needs. A whole reply names the
model that was asked, whichever that is.
"""

import argparse
import asyncio
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks import processes
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

_TOKENS = 24
_HEADER = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "learnloop/tiny"}
_USAGE = {"prompt_tokens": 40, "completion_tokens": _TOKENS, "total_tokens": 40 + _TOKENS}


def _logprob(token: int) -> Json:
    return {"token": f"token_id:{token}", "logprob": -1.0 / (3 + token), "bytes": [97], "top_logprobs": []}


def _completion() -> Json:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a" * _TOKENS, "refusal": None},
        "finish_reason": "stop",
        "logprobs": {"content": [_logprob(token) for token in range(_TOKENS)], "refusal": None},
        "token_ids": [*range(_TOKENS)],
    }
    exact = {"prompt_token_ids": [*range(40)]}
    return {**_HEADER, "object": "chat.completion", "choices": [choice], "usage": _USAGE, **exact}


def _chunk(token: int | None) -> bytes:
    ended = "stop" if token is None else None
    logprobs = None if token is None else {"content": [_logprob(token)], "refusal": None}
    delta = {} if token is None else {"content": "a"}
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": ended}
    chunk = {**_HEADER, "object": "chat.completion.chunk", "choices": [choice], **({} if token else {"usage": _USAGE})}
    return f"data: {json.dumps(chunk)}\n\n".encode()


_MODEL = json.dumps(_HEADER["model"]).encode()
_REPLY = json.dumps(_completion()).encode()
_CHUNKS = [_chunk(token) for token in [*range(_TOKENS), None]]
_OTHERS = json.dumps({"object": "list", "data": [{"id": "learnloop/tiny", "object": "model"}]}).encode()


class _Model:
    """An ASGI application whose replies take `reply_s` seconds; streams send their chunks at even intervals.

    Replies of a model differ in length, so each takes up to `spread` (a share of `reply_s`) more or less. How much
    depends only on the messages, so that two ways of calling are compared with equal replies.
    """

    def __init__(self, reply_s: float, spread: float) -> None:
        self._reply_s = reply_s
        self._spread = spread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if not scope["path"].endswith("/chat/completions"):
            await _send(send, "application/json", _OTHERS)
            return
        request = json.loads(body)
        takes_s = self._seconds(request["messages"])
        if request.get("stream"):
            await self._stream(send, takes_s)
        else:
            await asyncio.sleep(takes_s)
            await _send(send, "application/json", _REPLY.replace(_MODEL, json.dumps(request["model"]).encode()))

    def _seconds(self, messages: list[Json]) -> float:
        share = zlib.crc32(_texts(messages).encode()) / 2**32
        return self._reply_s * (1 + self._spread * (2 * share - 1))

    async def _stream(self, send: Send, takes_s: float) -> None:
        await _begin(send, "text/event-stream")
        for chunk in _CHUNKS:
            await asyncio.sleep(takes_s / len(_CHUNKS))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _texts(messages: list[Json]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


async def _begin(send: Send, kind: str) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})


async def _send(send: Send, kind: str, body: bytes) -> None:
    await _begin(send, kind)
    await send({"type": "http.response.body", "body": body})


@contextmanager
def slow_model(reply_s: float, spread: float = 0.0) -> Iterator[str]:
    """Run the stand-in; yield its OpenAI base URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    flags = ["--port", str(port), "--reply-s", str(reply_s), "--spread", str(spread)]
    with processes.module("benchmarks.engine.slow_model", *flags) as child:
        processes.wait_for(child, lambda: _answers(url))
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/models", trust_env=False).is_success
    except httpx.TransportError:
        return False


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--reply-s", type=float, required=True)
    parser.add_argument("--spread", type=float, required=True)
    options = parser.parse_args()
    model = _Model(options.reply_s, options.spread)
    uvicorn.run(model, port=options.port, lifespan="off", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
