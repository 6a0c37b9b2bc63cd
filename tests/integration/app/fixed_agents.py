"""Agents whose prompt is in their code, and a service with a scripted model that says yes when told so."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.own_agent_runs import reachable
from tests.integration.app.served import served

DESK = "You answer at the help desk.\r\nBe brief."
HINT = "Always say yes."
TASKS = [{"task": {"question": f"number {number}?"}} for number in range(60)]
TOOLS: list[Json] = [{"type": "function", "function": {"name": "look", "description": "Look it up.", "parameters": {}}}]


async def obedient(request: Mapping[str, Json]) -> Reply:
    """Say yes when told so. An empty request asks for the checkpoints."""
    if not request:
        return Reply(body={"data": [{"id": "learnloop/m", "steps": [0, 1]}]})
    return Reply(content="yes" if HINT in str(request["messages"][0]["content"]) else "no")


def chat_body(system: str, question: str) -> tuple[str, Json]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return "chat/completions", {"messages": messages, "tools": TOOLS}


def responses_body(system: str, question: str) -> tuple[str, Json]:
    return "responses", {
        "instructions": system,
        "input": question,
        "tools": [{"type": "function", **TOOLS[0]["function"]}],
    }


def messages_body(system: str, question: str) -> tuple[str, Json]:
    blocks = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    tools = [{"name": "look", "description": "Look it up.", "input_schema": {"type": "object"}}]
    messages = [{"role": "user", "content": question}]
    return "messages", {"max_tokens": 99, "system": blocks, "messages": messages, "tools": tools}


class FixedAgent:
    """An agent whose prompt is in its code. The first three of its attempts crash after the model's reply."""

    def __init__(self, body: Any = chat_body, prompt: str = DESK, title: Json = None) -> None:
        """`title` is a request that it makes before its work."""
        self.body, self.prompt, self.title = body, prompt, title
        self.crashes = 0

    async def __call__(self, document: Mapping[str, Json]) -> tuple[int, Json]:
        question, session = document["task"]["question"], document["session"]
        assert "prompt" not in document, "who brings its own texts gets no others"
        path, body = self.body(f"{self.prompt}\nThe customer asks for {question}", question)
        headers = {"authorization": f"Bearer {session['api_key']}"}
        async with httpx.AsyncClient(
            base_url=session["base_url"], headers=headers, timeout=60, trust_env=False
        ) as client:
            if self.title is not None:
                (await client.post("/chat/completions", json=self.title)).raise_for_status()
            replied = (await client.post(f"/{path}", json=body | {"model": "any"})).raise_for_status()
        if self.crashes < 3 and document["attempt"] == 1:
            self.crashes += 1
            return 503, "crashed"
        return 200, {"reward": float("yes" in replied.text)}


@asynccontextmanager
async def service(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        scripted_chat(obedient) as chat,
        served(reachable(data_dir, database_url), learn_loop, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        yield client


def environment(url: str, **more: Json) -> Json:
    return {
        "name": "agent",
        "config": {"scenarios": TASKS, "runner": {"push": {"url": url}}, "prompt": "replace"} | more,
    }
