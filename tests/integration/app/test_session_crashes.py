"""SIGKILL of the engine between turns, of the service in mid-call: the conversation is what it would have been."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conditions import answered
from tests.fakes.forked_learnloop import learnloop
from tests.integration.app.engine_children import engine_pid
from tests.integration.app.keyed import bearer
from tests.integration.app.served_processes import service_process

OPENING = [{"role": "user", "content": "On which day is the launch of Masibe?"}]
ASKED: Any = {"max_tokens": 24, "seed": 7}
"""With a seed of the client's, so that undisturbed and disturbed conversations are the same."""


async def opened(http: httpx.AsyncClient) -> Any:
    return (await http.post("/sessions", json={"model": "learnloop/tiny"})).raise_for_status().json()


async def ask(http: httpx.AsyncClient, session: Any, messages: Any) -> httpx.Response:
    path, headers = f"/sessions/{session['id']}/v1/chat/completions", bearer(session["api_key"])
    reply = await http.post(path, json=ASKED | {"messages": messages}, headers=headers)
    return reply.raise_for_status()


def continued(reply: httpx.Response) -> Any:
    return [*OPENING, reply.json()["choices"][0]["message"], {"role": "user", "content": "Are you sure?"}]


async def tokens(http: httpx.AsyncClient, session: Any) -> list[tuple[list[int], list[str]]]:
    """Prompt and reply of each call."""
    calls = (await http.get(f"/sessions/{session['id']}/calls")).raise_for_status().json()["items"]
    return [
        (completion["prompt_token_ids"], [token["token"] for token in completion["choices"][0]["logprobs"]["content"]])
        for completion in (call["completion"] for call in calls)
    ]


@pytest.mark.long
async def test_the_tokens_are_those_of_an_undisturbed_conversation(data_dir: Path, database_url: str) -> None:
    async with service_process(data_dir, learnloop("serve"), DATABASE_URL=database_url) as (process, http):
        await answered(lambda: http.get("/health/ready"), lambda reply: reply.json()["engine"] == "ready")
        undisturbed, without_engine, cut_off = [await opened(http) for _ in range(3)]
        await ask(http, undisturbed, continued(await ask(http, undisturbed, OPENING)))
        expected = await tokens(http, undisturbed)
        first = await ask(http, without_engine, OPENING)
        os.kill(engine_pid(data_dir), signal.SIGKILL)
        await ask(http, without_engine, continued(first))  # waits until the engine is back
        assert await tokens(http, without_engine) == expected

        before = await ask(http, cut_off, OPENING)
        stream = ASKED | {"messages": continued(before), "stream": True}
        path, headers = f"/sessions/{cut_off['id']}/v1/chat/completions", bearer(cut_off["api_key"])
        async with http.stream("POST", path, json=stream, headers=headers) as reply:
            await anext(reply.aiter_bytes())
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    async with service_process(data_dir, learnloop("serve"), DATABASE_URL=database_url) as (_, http):
        # and the agent is started again, too
        again = await ask(http, cut_off, OPENING)
        assert again.json() == before.json()
        assert again.headers["idempotency-replayed"] == "true"
        await ask(http, cut_off, continued(again))
        assert await tokens(http, cut_off) == expected
