"""A model behind OpenAI's API, on a real port, with every reply scripted by the test.

It ignores paths, so it also stands in for a misbehaving engine.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint


@dataclass(frozen=True, slots=True)
class Reply:
    """Tool calls as (name, arguments as text), a text, an error status, or an arbitrary body; and its token ids."""

    calls: tuple[tuple[str, str], ...] = ()
    content: str | None = None
    status: int = 200
    body: Json = None
    tokens: tuple[int, ...] = ()
    cut_off: bool = False
    """Whether the reply ended at its limit of tokens."""


Script = Callable[[Mapping[str, Json]], Awaitable[Reply]]
"""Returns the reply to a request's JSON ({} without any). It is cancelled if the client disconnects."""


def call(name: str, **arguments: Json) -> Reply:
    """Return a reply with one well-formed tool call."""
    return Reply(((name, json.dumps(arguments)),))


@dataclass
class ScriptedChat:
    """`answering` is the number of requests without a reply yet; `most` is its maximum."""

    script: Script
    requests: list[Mapping[str, Json]] = field(default_factory=list)
    answering: int = 0
    most: int = 0
    url: str = ""

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return the endpoint of the model. The step is part of the model's name."""
        return Endpoint(self.url, "key", f"scripted@{step}")

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        request = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        self.requests.append(request)
        self.answering += 1
        self.most = max(self.most, self.answering)
        replying = asyncio.ensure_future(self.script(request))
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((replying, gone), return_when=asyncio.FIRST_COMPLETED)
            if replying.done():
                writer.write(_response(replying.result(), request))
                await writer.drain()
        finally:
            self.answering -= 1
            replying.cancel()
            gone.cancel()
            writer.close()


def _response(reply: Reply, request: Mapping[str, Json]) -> bytes:
    body = json.dumps(reply.body if reply.body is not None else _completion(reply, request))
    return (
        f"HTTP/1.1 {reply.status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Retry-After-Ms: 1\r\nConnection: close\r\n\r\n{body}"
    ).encode()


def _completion(reply: Reply, request: Mapping[str, Json]) -> Json:
    if reply.status != 200:
        return {"error": {"message": "as scripted", "type": "server_error", "code": None}}
    turn = len(request.get("messages", ()))  # calls of different turns have different ids
    calls = [
        {"id": f"call_{turn}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.content} | ({"tool_calls": calls} if calls else {})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if calls else "length" if reply.cut_off else "stop",
    }
    if reply.tokens:
        content: list[Json] = [
            {"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in reply.tokens
        ]
        choice["logprobs"] = {"content": content, "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", ""),
        "choices": [choice],
        "usage": {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60},
    }


@asynccontextmanager
async def scripted_chat(script: Script) -> AsyncIterator[ScriptedChat]:
    """Run a model while the context is open."""
    chat = ScriptedChat(script)
    server = await asyncio.start_server(chat.handle, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield chat
