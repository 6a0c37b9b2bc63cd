"""The agent `langgraph`: a ReAct loop as a LangGraph graph. It needs the extra `langgraph`.

Two nodes take turns: the model, and its tools; a reply without a tool call ends the graph. Written as it would be for
use without Learnloop; what makes it trainable is that its model and tools are those of the task.
"""

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from environment.base import Json
from training.rollout.agents.base import AgentTask

NAME = "langgraph"


def build(config: Mapping[str, Json]) -> "LangGraphAgent":
    """Raises ValueError: it has no settings."""
    if config:
        raise ValueError(f"the agent {NAME} has no config, so {', '.join(sorted(config))} cannot be set")
    return LangGraphAgent()


class LangGraphAgent:
    """ReAct over the tools of the task."""

    name = NAME

    async def run(self, task: AgentTask) -> str:
        limit = {"recursion_limit": 2 * task.max_turns + 2}  # in steps; the rollout ends before
        state = await _graph(task).ainvoke({"messages": list(task.messages)}, limit)
        return str(state["messages"][-1].text)


def _graph(task: AgentTask) -> Any:
    model = ChatOpenAI(
        model=task.model.model,
        base_url=task.model.base_url,
        api_key=SecretStr(task.model.api_key),
        http_async_client=task.model.http_client,
        http_client=task.model.sync_http_client,
        max_retries=0,
    ).bind(tools=[tool.openai() for tool in task.tools])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def act(state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolMessage(await _result(task, call), tool_call_id=call["id"]) for call in _calls(state)]}

    def after_thinking(state: MessagesState) -> str:
        return "act" if _calls(state) else END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after_thinking, ["act", END])
    graph.add_edge("act", "think")
    return graph.compile()


def _calls(state: MessagesState) -> list[ToolCall | InvalidToolCall]:
    """Those of the last reply; what is wrong with one that is not JSON, the tool says."""
    last = state["messages"][-1]
    return [*last.tool_calls, *last.invalid_tool_calls] if isinstance(last, AIMessage) else []


async def _result(task: AgentTask, call: ToolCall | InvalidToolCall) -> str:
    arguments = call["args"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return await task.call_tool(str(call["name"]), written, str(call["id"]))
