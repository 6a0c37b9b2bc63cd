"""The mail job with the OpenAI Agents SDK: the base URL and the key come from the environment, as in production."""

import asyncio
import json
import os
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OpenAIProvider,
    RunConfig,
    Runner,
    ToolsToFinalOutputResult,
)

from benchmarks.agents.desk_client import Desk, Done, Json


def main() -> None:
    asyncio.run(_work())


async def _work() -> None:
    desk, ended = Desk(), list[Json]()

    def tool(offered: Json) -> FunctionTool:
        function = offered["function"]

        async def invoke(_context: Any, arguments: str) -> str:
            try:
                return desk.call(function["name"], arguments)
            except Done as finish:
                ended.append(finish.outcome)
                return "done"

        return FunctionTool(
            function["name"], function["description"], function["parameters"], invoke, strict_json_schema=False
        )

    system, *rest = desk.messages
    agent = Agent(
        name="mail",
        instructions=system["content"],
        model=os.environ["OPENAI_MODEL"],
        tools=[tool(function_tool) for function_tool in desk.tools],
        tool_use_behavior=lambda _context, _results: ToolsToFinalOutputResult(bool(ended), "done"),
    )
    config = RunConfig(model_provider=OpenAIProvider(use_responses=False), tracing_disabled=True)
    reason = "malformed"
    try:
        if "STREAMS" in os.environ:
            running = Runner.run_streamed(agent, rest, max_turns=desk.max_turns, run_config=config)
            async for _ in running.stream_events():
                pass
        else:
            await Runner.run(agent, rest, max_turns=desk.max_turns, run_config=config)
    except MaxTurnsExceeded:
        reason = "out_of_turns"
    except ModelBehaviorError:  # the model called a tool that does not exist
        pass
    print(json.dumps(ended[0] if ended else desk.end(reason)))


if __name__ == "__main__":
    main()
