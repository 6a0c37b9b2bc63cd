"""Runs whose scripted model needs several turns."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx

from learnloop_service.environment.email_search.synthetic import make_world, parse_address
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_chat import call as tool_call
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import served, settings_for
from tests.integration.training.scripted_runs import address_of

PROMPT, REPLY = 500, 10
"""Tokens of each request to the scripted model."""
TURNS = 3
RUN = {
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 3,
    "concurrency": 4,
    "max_turns": TURNS,
    "max_completion_tokens": REPLY,
    "seed": 5,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 2, "samples": 1},
}


async def talker(request: Mapping[str, Any]) -> Reply:
    """Searches up to twice, as the seed says, and then answers, often right; each request takes as many tokens."""
    asked = sum(message["role"] == "tool" for message in request["messages"])
    luck = request["seed"] / 2**53
    [(name, arguments)] = tool_call("search_inbox", keywords=["kickoff"]).calls
    if asked == TURNS - 1 or luck < 0.4:
        place = parse_address(address_of(request))
        assert place
        world = make_world(*place)
        answer = world.answer if request["seed"] % 2 else "no idea"
        [(name, arguments)] = tool_call("return_final_answer", answer=answer, sources=[world.source_id]).calls
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    return Reply(
        body={
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": PROMPT, "completion_tokens": REPLY, "total_tokens": PROMPT + REPLY},
        }
    )


@asynccontextmanager
async def service(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A client of the service, and the model behind it."""
    settings = settings_for(data_dir, database_url, **more)
    async with (
        scripted_chat(talker) as model,
        served(settings, cast(Any, learn_loop), ScriptedBackend(model.url)) as client,
    ):
        yield client, model
