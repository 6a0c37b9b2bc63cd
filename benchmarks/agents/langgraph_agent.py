"""The mail job as a LangGraph ReAct graph: the base URL and the key come from the environment, as in production."""

import json
import os

from langchain_core.messages import AIMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.agents.desk_client import Desk, Done, Json


def main() -> None:
    desk = Desk()
    streaming = "STREAMS" in os.environ
    model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], max_retries=0, streaming=streaming).bind(tools=desk.tools)

    def think(state: MessagesState) -> Json:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: MessagesState) -> Json:
        return {"messages": [ToolMessage(_result(desk, call), tool_call_id=call["id"]) for call in _calls(state)]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda state: "act" if _calls(state) else END, ["act", END])
    graph.add_edge("act", "think")
    try:
        graph.compile().invoke({"messages": desk.messages}, {"recursion_limit": 2 * desk.max_turns})
        outcome = desk.end("malformed")
    except Done as finish:
        outcome = finish.outcome
    except GraphRecursionError:
        outcome = desk.end("out_of_turns")
    print(json.dumps(outcome))


def _calls(state: MessagesState) -> list[Json]:
    last = state["messages"][-1]
    return [*last.tool_calls, *last.invalid_tool_calls] if isinstance(last, AIMessage) else []


def _result(desk: Desk, call: Json) -> str:
    arguments = call["args"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return desk.call(str(call["name"]), written)


if __name__ == "__main__":
    main()
