"""A team's own agent behind HTTP, on a real port: it takes tasks, works in its session, and gives scripted answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from learnloop_service.environment.json_type import Json

Behaviour = Callable[[Mapping[str, Json]], Awaitable[tuple[int, Json]]]
"""Returns the status and body of the answer to a task's document. It is cancelled if the service disconnects."""


async def ask_model(session: Mapping[str, Json], question: str) -> str:
    """Return the reply of the session's model to a plain HTTP client."""
    body = {"model": session["model"], "messages": [{"role": "user", "content": question}]}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        headers = {"authorization": f"Bearer {session['api_key']}"}
        replied = await client.post(f"{session['base_url']}/chat/completions", headers=headers, json=body)
    reply: str = replied.raise_for_status().json()["choices"][0]["message"]["content"]
    return reply


async def send_outcome(session: Mapping[str, Json], outcome: Json) -> httpx.Response:
    """End the session with its own key."""
    url = session["base_url"].removesuffix("/v1") + "/outcome"
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.post(url, headers={"authorization": f"Bearer {session['api_key']}"}, json=outcome)


@dataclass
class Runner:
    """`received` are the documents, with the headers and bodies that they came in."""

    behave: Behaviour
    received: list[tuple[Json, Mapping[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        content = await reader.readexactly(int(headers["content-length"]))
        document = json.loads(content)
        self.received.append((document, headers, content))
        answering = asyncio.ensure_future(self.behave(document))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                status, body = answering.result()
                text = body if isinstance(body, str) else json.dumps(body)
                writer.write(
                    f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(text.encode())
                await writer.drain()
        finally:
            answering.cancel()
            gone.cancel()
            writer.close()


@asynccontextmanager
async def runner(behave: Behaviour) -> AsyncIterator[Runner]:
    """Run a runner while the context is open."""
    it = Runner(behave)
    server = await asyncio.start_server(it.handle, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tasks"
    async with server:
        yield it
