"""A model behind OpenAI's API, on a real port, with scripted replies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ScriptedModel:
    """Calls the tool `name` with `arguments` in every reply. A `status` other than 200 is sent as an error instead;
    models in `missing` get 404."""

    name: str = "return_final_answer"
    arguments: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    missing: frozenset[str] = frozenset()
    requests: list[Any] = field(default_factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        self.requests.append(json.loads(await reader.readexactly(length)))
        model = self.requests[-1]["model"]
        status = 404 if model in self.missing else self.status
        body = json.dumps(self._reply(model, status))
        writer.write(
            f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()

    def _reply(self, model: str, status: int) -> dict[str, Any]:
        if status != 200:
            return {"error": {"message": f"no model {model}", "type": "invalid_request_error", "code": None}}
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": self.name, "arguments": json.dumps(self.arguments)},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60},
        }


@asynccontextmanager
async def scripted_model(**script: Any) -> AsyncIterator[ScriptedModel]:
    """Run a model while the context is open."""
    model = ScriptedModel(**script)
    server = await asyncio.start_server(model.handle, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield model
