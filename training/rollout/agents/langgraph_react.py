"""The agent `langgraph`: a ReAct loop as a LangGraph graph. It needs the extra `langgraph`.

Its two nodes, the model and its tools, alternate until a reply without a tool call. The graph is written as it would be
without Learnloop; it can be trained because it uses the task's model and tools.
"""

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from learnloop_service.environment.base import Json
from learnloop_service.training.rollout.agents.base import AgentTask

NAME = "langgraph"


def build(config: Mapping[str, Json]) -> "LangGraphAgent":
    """Build the agent. Raises ValueError for any setting, because the agent has none."""
    if config:
        raise ValueError(f"the agent {NAME} has no config, so {', '.join(sorted(config))} cannot be set")
    return LangGraphAgent()


class LangGraphAgent:
    """ReAct with the task's tools."""

    name = NAME

    async def run(self, task: AgentTask) -> str:
        limit = {"recursion_limit": 2 * task.max_turns + 2}  # in graph steps; the rollout ends before this limit
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
    """Return the tool calls of the last reply, also those whose arguments are not JSON, so that the tool reports the
    error."""
    last = state["messages"][-1]
    return [*last.tool_calls, *last.invalid_tool_calls] if isinstance(last, AIMessage) else []


async def _result(task: AgentTask, call: ToolCall | InvalidToolCall) -> str:
    arguments = call["args"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return await task.call_tool(str(call["name"]), written, str(call["id"]))
