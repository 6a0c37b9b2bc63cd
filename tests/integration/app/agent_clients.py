"""An agent's session, and an OpenAI client in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import openai

from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.openai_clients import MESSAGES


async def opened(stage: ModelStage, **more: Any) -> Any:
    key = await stage.key()
    reply = await stage.service.client.post("/sessions", json={"model": CALLER} | more, headers=bearer(key))
    return reply.raise_for_status().json() | {"owner": bearer(key)}


@asynccontextmanager
async def agent(session: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"], max_retries=0) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, messages: Any = MESSAGES, **more: Any) -> Any:
    body: Any = {"model": "gpt-4o", "messages": messages, "max_tokens": 8}
    return await client.chat.completions.create(**body | more)


async def recorded(stage: ModelStage, session: Any) -> list[Any]:
    reply = await stage.service.client.get(f"/sessions/{session['id']}/calls", headers=session["owner"])
    return cast(list[Any], reply.raise_for_status().json()["items"])


def two_turns(first: Any) -> list[Any]:
    said = first.choices[0].message.model_dump(exclude_none=True)
    calls = said.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Tuesday"} for call in calls]
    return [*MESSAGES, said, *results, {"role": "user", "content": "And then?"}]
