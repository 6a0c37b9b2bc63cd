"""Sessions by the Python client: an agent works in one, and it ends with an outcome."""

import asyncio
from typing import Any

import openai
import pytest

from learnloop import AsyncLearnloop, Conflict, Learnloop
from learnloop.types import FeedbackEvent
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.openai_clients import MESSAGES


async def test_an_agent_works_in_a_session(stage: ModelStage) -> None:
    async with AsyncLearnloop(str(stage.service.client.base_url), await stage.key()) as client:
        async with client.session(CALLER, ttl_s=600, metadata={"ticket": 7}) as session:
            async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as agent:
                await agent.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=8)
            state = await session.state()
            assert (state["status"], state["model"], state["calls"]) == ("open", CALLER, 1)
            assert state["metadata"] == {"ticket": 7}
            ended = await session.outcome(reward=0.5)
            assert (ended["status"], ended["reward"]) == ("ended", 0.5)
            assert await session.outcome(reward=0.5) == ended
            with pytest.raises(Conflict):
                await session.outcome(reward=1.0)
        assert await session.state() == ended


async def test_feedback_on_a_session_comes_later(stage: ModelStage) -> None:
    async with AsyncLearnloop(str(stage.service.client.base_url), await stage.key()) as client:
        async with client.session(CALLER) as session:
            await session.outcome(reason="nobody knows yet")
        event: FeedbackEvent = {"session_id": session.id, "event_id": "ticket-7", "comment": "The wrong invoice."}
        assert (await client.feedback("thumbs_down", **event))["accepted"] == 1
        assert (await client.feedback("thumbs_down", **event))["duplicates"] == 1
        assert (await client.feedback("thumbs_down", session_id=session.id))["accepted"] == 1
        feedback = (await session.state())["feedback"]
        assert feedback is not None
        assert (feedback["events"], feedback["losses"]) == (2, 2.0)


async def test_a_session_that_is_left_counts_for_nothing(stage: ModelStage) -> None:
    url, key = str(stage.service.client.base_url), await stage.key()

    def sync(fails: bool) -> Any:
        with Learnloop(url, key) as client:
            try:
                with client.session(CALLER) as session:
                    if fails:
                        raise ValueError("no such mail")
            except ValueError:
                pass
            return session.state()

    async def asynchronous(fails: bool) -> Any:
        async with AsyncLearnloop(url, key) as client:
            try:
                async with client.session(CALLER) as session:
                    if fails:
                        raise ValueError("no such mail")
            except ValueError:
                pass
            return await session.state()

    for fails, reason in ((True, "the agent raised ValueError: no such mail"), (False, "closed without an outcome")):
        for state in (await asyncio.to_thread(sync, fails), await asynchronous(fails)):
            assert (state["status"], state["reward"]) == ("ended", None)
            assert reason in state["outcome"]["reason"]
