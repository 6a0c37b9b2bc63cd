"""Agents that own their loop and do what a test says."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from learnloop_service.training.rollout.agents.base import AgentTask


@dataclass(frozen=True)
class Scripted:
    """An agent that does what a test says."""

    work: Callable[[AgentTask], Awaitable[str]]
    name: str = "scripted"

    async def run(self, task: AgentTask) -> str:
        return await self.work(task)


async def ask(task: AgentTask, messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """The model's message, as an agent keeps it."""
    access = task.model
    client = AsyncOpenAI(
        base_url=access.base_url, api_key=access.api_key, http_client=access.http_client, max_retries=0
    )
    body: Any = {"messages": list(messages), "tools": [tool.openai() for tool in task.tools], **more}
    completion = await client.chat.completions.create(**{"model": access.model, **body})
    message: dict[str, Any] = completion.choices[0].message.model_dump(exclude_none=True)
    return message


async def answer(task: AgentTask, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Results of the message's tool calls."""
    return [
        {
            "role": "tool",
            "tool_call_id": tool_call["id"],
            "content": await task.call_tool(
                tool_call["function"]["name"], tool_call["function"]["arguments"], tool_call["id"]
            ),
        }
        for tool_call in message.get("tool_calls", [])
    ]


async def react(task: AgentTask) -> str:
    """The built-in loop, written by hand."""
    messages: list[Any] = list(task.messages)
    while True:
        message = await ask(task, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message.get("content"))
        messages += await answer(task, message)
