"""Two prompted models that fail in known ways at the questions of an evaluation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.environment.email_search import synthetic
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import served, settings_for

FAILURES = {
    "before": ("solved", "gave_up", "unknown_tool", "gave_up"),
    "after": ("unread", "solved", "repeats", "gave_up"),
}
"""What each model does with the questions, by the number of the question."""
MODELS = [{"prompted": f"openai/{name}", "label": name} for name in FAILURES]


async def _reply(request: Json) -> Reply:
    address = next(w.strip(".,") for w in request["messages"][0]["content"].split() if "@inbox.example" in w)
    world = synthetic.parse_address(address)
    assert world is not None
    reference = synthetic.make_world(*world).scenario("test").reference
    name = next(name for name in FAILURES if name in request["model"])
    has_searched = any(message["role"] == "tool" for message in request["messages"])
    match FAILURES[name][world[-1] % 4]:
        case "solved":
            return call("return_final_answer", answer=reference["answer"], sources=reference["source_ids"])
        case "gave_up":
            return call("return_final_answer", answer="I don't know", sources=[])
        case "unknown_tool":
            return call("read_minds", email_id="x")
        case "unread" if has_searched:
            return call("return_final_answer", answer="on a Tuesday in the rain", sources=["nothing"])
        case "unread":
            return call("search_inbox", keywords=[], sent_after="2000-01-01")
        case _:
            return call("search_inbox", keywords=["zzzz"])


@asynccontextmanager
async def failing_models(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that lists the two models."""
    async with scripted_chat(_reply) as chat:
        listed = [{"model": f"openai/{name}", "base_url": chat.url, "key": "sk-prompted"} for name in FAILURES]
        settings = settings_for(data_dir, database_url, models=listed, **more)
        async with served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:
            yield client


async def compared(client: httpx.AsyncClient, models: Any = None, **more: Any) -> str:
    """Start an evaluation of the models, or of some, and return its id."""
    body = {"models": models or MODELS, "scenarios": 4, "samples": 2, **more}
    id: str = (await client.post("/evaluations", json=body)).raise_for_status().json()["evaluation_id"]
    return id
