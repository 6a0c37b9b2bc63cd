"""A prompted model as a rollout asks it."""

from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import JudgeModel
from learnloop_service.training.rollout.prompted import PromptedChat, PromptedModelUnavailable
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from tests.fakes.scripted_chat import Reply, call, scripted_chat

KEY = "sk-prompted-0123456789"


def _model(url: str) -> JudgeModel:
    return JudgeModel("openai/qwen", url, KEY, httpx.AsyncHTTPTransport)


async def at_once(seconds: float) -> None:
    """No pause between requests."""


async def test_it_plays_an_episode_and_no_log_probabilities_are_asked_for() -> None:
    replies = iter((Reply(status=503), call("search_inbox", keywords=["launch"]), call("read_email", email_id="x")))

    async def answer(request: Any) -> Reply:
        return next(replies, call("return_final_answer", answer="14 March", sources=["x"]))

    environment = SyntheticEmailSearch()
    [scenario] = environment.scenarios("test", 1, 0)
    async with scripted_chat(answer) as server:
        chat = PromptedChat(_model(server.url), concurrency=2, sleep=at_once)
        played = await rollout(environment, scenario, chat, id="r", seed=1, limits=RolloutLimits(temperature=0.0))
    assert played.failure is None
    assert played.outcome["finish"] == "answered"
    assert played.outcome["turns"] == 3
    assert played.trajectory.metrics["completion_tokens"] > 0
    first, *_, last = server.requests
    assert first["model"] == "qwen"
    assert first["temperature"] == 0.0
    assert "logprobs" not in first
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


async def test_a_refusal_is_told_without_the_key() -> None:
    async def refuse(request: Any) -> Reply:
        return Reply(status=401, body={"error": {"message": f"the key {KEY} is wrong"}})

    async with scripted_chat(refuse) as server:
        chat = PromptedChat(_model(server.url), concurrency=2, sleep=at_once)
        with pytest.raises(PromptedModelUnavailable) as refused:
            await chat.complete({"model": "openai/qwen", "messages": [{"role": "user", "content": "?"}]})
    assert len(server.requests) == 1
    assert KEY not in str(refused.value)
