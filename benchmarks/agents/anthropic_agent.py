"""The mail job with the `anthropic` SDK: the base URL and the key come from the environment, as in production."""

import json
import os
from typing import Any

from anthropic import Anthropic

from benchmarks.agents.desk_client import Desk, Done, Json


def main() -> None:
    desk = Desk()
    client = Anthropic(max_retries=0)
    system, *messages = desk.messages
    tools = [
        {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        for function in (tool["function"] for tool in desk.tools)
    ]
    print(json.dumps(_work(desk, client, system["content"], messages, tools)))


def _work(desk: Desk, client: Anthropic, system: str, messages: list[Json], tools: list[Json]) -> Json:
    for _ in range(desk.max_turns):
        asked: Any = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 256, "system": system, "tools": tools}
        if "STREAMS" in os.environ:
            with client.messages.stream(**asked, messages=messages) as stream:
                reply: Any = stream.get_final_message()
        else:
            reply = client.messages.create(**asked, messages=messages)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return desk.end("malformed")
        try:
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": desk.call(call.name, call.input)}
                for call in calls
            ]
        except Done as finish:
            return finish.outcome
        messages.append({"role": "user", "content": results})
    return desk.end("out_of_turns")


if __name__ == "__main__":
    main()
