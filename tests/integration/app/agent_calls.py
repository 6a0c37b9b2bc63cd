"""Calls of an agent's session, and their replies in the store."""

import asyncio
from datetime import timedelta
from typing import Any

from learnloop_service.app.agent_sessions.calls import SessionCaller, SessionCalls
from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.agent_sessions.replay import Repetition
from learnloop_service.app.agent_sessions.store import PinnedModel, SessionSpec

MODEL = PinnedModel("agent", "mail/agent@3", 3, "embedded", None)
GREETING = canonical({"messages": [{"role": "user", "content": "hello"}]}, None)
QUESTION = canonical({"messages": [{"role": "user", "content": "why?"}]}, None)


def spec(**more: Any) -> SessionSpec:
    return SessionSpec("mail", MODEL, **({"ttl": timedelta(hours=1)} | more))


def completion(text: str, *ids: int) -> dict[str, Any]:
    tokens: list[Any] = [
        {"token": f"token_id:{id}", "logprob": -0.1 * id, "bytes": None, "top_logprobs": []} for id in ids
    ]
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens}}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "mail/agent@3",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": len(ids), "total_tokens": 2 + len(ids)},
        "prompt_token_ids": [7, 8],
    }


async def begun(calls: SessionCalls, asker: SessionCaller, request: Any = GREETING, **asked: Any) -> Any:
    return await asyncio.wait_for(calls.begin(asker, request, "chat", Repetition(**asked)), 60)


async def answered(calls: SessionCalls, asker: SessionCaller, text: str, request: Any = GREETING) -> None:
    call = await begun(calls, asker, request)
    await calls.answer(call, completion(text, 5, 6))
    await calls.finish(call, delivered=True)
