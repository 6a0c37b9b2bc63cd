"""A stand-in for an engine on another machine: it replies after a delay and computes nothing.

It runs in a separate process and implements as much of the engine's API as a session needs. A whole reply names the
model that was asked, whichever that is. Some replies can be faulty, as the messages decide.
"""

import argparse
import asyncio
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from random import Random

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from app.cli.service_process import free_port
from benchmarks import processes
from environment.json_type import Json

_TOKENS = 24
_HEADER = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "learnloop/tiny"}
_USAGE = {"prompt_tokens": 40, "completion_tokens": _TOKENS, "total_tokens": 40 + _TOKENS}


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of whole replies that are faulty, each in [0, 1]; a stream never is."""

    malformed: float = 0.0
    """With a tool call whose arguments end too early."""
    error: float = 0.0
    """With status 404 instead, as if the checkpoint were gone, which is not retried."""
    slow: float = 0.0
    slow_s: float = 0.0
    """How much longer a slow reply takes."""


NO_FAULTS = Faults()


def _logprob(token: int) -> Json:
    return {"token": f"token_id:{token}", "logprob": -1.0 / (3 + token), "bytes": [97], "top_logprobs": []}


def _completion(more: Json) -> Json:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a" * _TOKENS, "refusal": None, **more},
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
    made = {**_HEADER, "object": "chat.completion.chunk", "choices": [choice], **({} if token else {"usage": _USAGE})}
    return f"data: {json.dumps(made)}\n\n".encode()


_MODEL = json.dumps(_HEADER["model"]).encode()
_REPLY = json.dumps(_completion({})).encode()
_CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"keywords": ["a'}}
_MALFORMED = json.dumps(_completion({"tool_calls": [_CALL]})).encode()
_ERROR = json.dumps({"error": {"message": "no such checkpoint", "type": "invalid_request_error"}}).encode()
_CHUNKS = [_chunk(token) for token in [*range(_TOKENS), None]]
_OTHERS = json.dumps({"object": "list", "data": [{"id": "learnloop/tiny", "object": "model"}]}).encode()


class _Model:
    """An ASGI application whose replies take `reply_s` seconds; streams send their chunks at even intervals.

    Replies of a model differ in length, so each takes up to `spread` (a share of `reply_s`) more or less. Delay and
    faults depend only on the messages, so that two ways of calling are compared with equal replies.
    """

    def __init__(self, reply_s: float, spread: float, faults: Faults) -> None:
        self._reply_s = reply_s
        self._spread = spread
        self._faults = faults

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
        asked = json.loads(body)
        takes_s = self._seconds(asked["messages"])
        if asked.get("stream"):
            await self._stream(send, takes_s)
        else:
            await self._whole(send, asked, takes_s)

    async def _whole(self, send: Send, asked: Json, takes_s: float) -> None:
        chance, faults = Random(_texts(asked["messages"])), self._faults
        malformed, error, slow = (chance.random() < share for share in (faults.malformed, faults.error, faults.slow))
        await asyncio.sleep(takes_s + (faults.slow_s if slow else 0.0))
        if error:
            await _send(send, "application/json", _ERROR, 404)
            return
        reply = _MALFORMED if malformed else _REPLY
        await _send(send, "application/json", reply.replace(_MODEL, json.dumps(asked["model"]).encode()))

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
    return "\n".join(str(each["content"]) for each in messages)


async def _begin(send: Send, kind: str, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})


async def _send(send: Send, kind: str, body: bytes, status: int = 200) -> None:
    await _begin(send, kind, status)
    await send({"type": "http.response.body", "body": body})


@contextmanager
def slow_model(reply_s: float, spread: float = 0.0, faults: Faults = NO_FAULTS) -> Iterator[str]:
    """Run the stand-in; yield its OpenAI base URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    flags = ["--port", str(port), "--reply-s", str(reply_s), "--spread", str(spread)]
    flags += ["--faults", *map(str, astuple(faults))]
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
    parser.add_argument("--faults", type=float, nargs=4, required=True, help="the values of Faults, in order")
    given = parser.parse_args()
    model = _Model(given.reply_s, given.spread, Faults(*given.faults))
    uvicorn.run(model, port=given.port, lifespan="off", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
