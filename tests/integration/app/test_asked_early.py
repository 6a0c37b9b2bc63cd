"""The model is asked while the database takes the call, and no more than that: nothing else changes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from learnloop_service.app.agent_sessions.batched_calls import BatchedCalls, NewCall, TakenCall
from learnloop_service.app.gateway.upstream import Upstream
from learnloop_service.training.backends.base import Endpoint
from tests import conditions
from tests.integration.app.agent_clients import agent, ask, opened, recorded, two_turns
from tests.integration.app.model_stage import ModelStage

IS_STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@dataclass
class Between:
    """What goes on between the gateway, the model's server and the database."""

    seeds: list[int] = field(default_factory=list)
    """With which the model was asked, in this order."""
    given_up: int = 0
    """Of these requests."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the model is asked, since this was last cleared."""
    take_after: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls are taken when it is set."""
    taking: int = 0
    """Calls that are to be taken, or were."""


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    noted = Between()
    noted.take_after.set()
    complete, chunks, take = Upstream.complete, Upstream.chunks, BatchedCalls.take

    async def note(body: Any) -> None:
        noted.seeds.append(body["seed"])
        noted.asked.set()

    async def asked_whole(self: Upstream, endpoint: Endpoint, body: Any) -> Any:
        await note(body)
        try:
            return await complete(self, endpoint, body)
        except asyncio.CancelledError:
            noted.given_up += 1
            raise

    async def asked_stream(self: Upstream, endpoint: Endpoint, body: Any) -> AsyncGenerator[Any]:
        await note(body)
        ended = False
        try:
            async with aclosing(chunks(self, endpoint, body)) as stream:
                async for chunk in stream:
                    yield chunk
                ended = True
        finally:
            noted.given_up += not ended

    async def noted_take(self: BatchedCalls, call: NewCall) -> TakenCall | None:
        noted.taking += 1
        await noted.take_after.wait()
        return await take(self, call)

    monkeypatch.setattr(Upstream, "complete", asked_whole)
    monkeypatch.setattr(Upstream, "chunks", asked_stream)
    monkeypatch.setattr(BatchedCalls, "take", noted_take)
    return noted


async def text_of(client: openai.AsyncOpenAI, messages: Any, *, stream: bool) -> str:
    reply = await ask(client, messages, stream=stream)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in reply if chunk.choices])


@pytest.fixture
async def begun(stage: ModelStage, between: Between) -> AsyncIterator[tuple[Any, openai.AsyncOpenAI, Any]]:
    """A session, its agent after the first turn, and what this one says next."""
    session = await opened(stage)
    async with agent(session) as client:
        messages = two_turns(await ask(client))
        between.asked.clear()
        between.taking = 0
        yield session, client, messages


@IS_STREAMED
async def test_the_next_turn_is_asked_for_before_its_call_is_taken(
    stage: ModelStage, between: Between, begun: Any, stream: bool
) -> None:
    session, client, messages = begun
    between.take_after.clear()
    turn = asyncio.create_task(text_of(client, messages, stream=stream))
    await asyncio.wait_for(between.asked.wait(), 60)
    between.take_after.set()
    reply = await asyncio.wait_for(turn, 60)
    first, second = await recorded(stage, session)
    assert second["completion"]["choices"][0]["message"]["content"] == reply
    assert between.seeds == [first["seed"], second["seed"]]
    assert between.given_up == 0


async def test_the_first_turn_waits_for_its_call(stage: ModelStage, between: Between) -> None:
    """An agent that was started again after its service begins with requests that have answers."""
    between.take_after.clear()
    async with agent(await opened(stage)) as client:
        turn = asyncio.create_task(ask(client))
        await conditions.until(lambda: between.taking)
        assert not between.asked.is_set()
        between.take_after.set()
        await asyncio.wait_for(turn, 60)
    assert len(between.seeds) == 1


@IS_STREAMED
async def test_what_a_session_that_is_over_was_asked_is_given_up(
    stage: ModelStage, between: Between, begun: Any, stream: bool
) -> None:
    session, client, messages = begun
    between.take_after.clear()
    turn = asyncio.create_task(text_of(client, messages, stream=stream))
    await asyncio.wait_for(between.asked.wait(), 60)
    outcome = f"/sessions/{session['id']}/outcome"
    await stage.service.client.post(outcome, json={"reward": 1.0}, headers=session["owner"])
    between.take_after.set()
    with pytest.raises(openai.PermissionDeniedError, match="it answers nothing more"):
        await asyncio.wait_for(turn, 60)
    assert len(await recorded(stage, session)) == 1


@IS_STREAMED
async def test_a_call_with_another_seed_is_asked_for_again(
    stage: ModelStage, between: Between, begun: Any, stream: bool
) -> None:
    """One that is not the next turn of all that the session asks."""
    session, client, messages = begun
    await ask(client, [{"role": "user", "content": "Something else."}])
    reply = await text_of(client, messages, stream=stream)
    first, aside, second = await recorded(stage, session)
    assert second["completion"]["choices"][0]["message"]["content"] == reply
    assert [first["seed"], aside["seed"]] == between.seeds[:2]
    assert second["seed"] == between.seeds[-1] != between.seeds[2]
    assert len(between.seeds) == 4


async def test_the_same_turn_twice_is_asked_for_early_once(stage: ModelStage, between: Between, begun: Any) -> None:
    session, client, messages = begun
    between.take_after.clear()
    others = [*messages[:-1], {"role": "user", "content": "And before?"}]
    turns = [asyncio.create_task(ask(client, conversation)) for conversation in (messages, others)]
    await conditions.until(lambda: between.taking == 2)
    assert len(between.seeds) == 2
    between.take_after.set()
    await asyncio.wait_for(asyncio.gather(*turns), 60)
    _, *later = await recorded(stage, session)
    assert sorted(between.seeds[1:]) == sorted(call["seed"] for call in later)
    assert between.given_up == 0


async def test_a_client_that_leaves_ends_what_was_asked_early(stage: ModelStage, between: Between, begun: Any) -> None:
    session, _, messages = begun
    body = {"messages": messages, "max_tokens": 3000}
    path = f"/sessions/{session['id']}/v1/chat/completions"
    headers = {"authorization": f"Bearer {session['api_key']}"}
    async with httpx.AsyncClient(base_url=stage.service.client.base_url, trust_env=False) as client:
        turn = asyncio.create_task(client.post(path, json=body, headers=headers, timeout=60))
        await asyncio.wait_for(between.asked.wait(), 60)
        turn.cancel()
        await asyncio.wait({turn})
    await conditions.until(lambda: between.given_up == 1)
