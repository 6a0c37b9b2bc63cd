"""A prompt with a hint, and a scripted model that is right only with it."""

from collections.abc import Mapping
from typing import Any

import httpx

from learnloop_service.environment.email_search import synthetic
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, call

HINT = "Answer with what you read."
HINTED = {"parts": {"system": f"{{original}} {HINT}", "tool:read_email": "Open a mail. {original}"}}


async def right_when_hinted(request: Mapping[str, Json]) -> Reply:
    """The right answer to whoever has the hint; anybody else gives up."""
    system = request["messages"][0]["content"]
    if HINT not in system:
        return call("return_final_answer", answer="I don't know", sources=[])
    address = next(word.strip(".,") for word in system.split() if "@inbox.example" in word)
    world_key = synthetic.parse_address(address)
    assert world_key is not None
    right = synthetic.make_world(*world_key).scenario(world_key[0]).reference
    return call("return_final_answer", answer=right["answer"], sources=right["source_ids"])


async def store(client: httpx.AsyncClient, prompt: Json, name: str = "hinted", **more: Any) -> httpx.Response:
    return await client.post("/prompts", params={"name": name}, json=prompt, **more)
