"""A model whose checkpoints can be promoted and released, with a scripted engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, ScriptedChat, call
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.ended_evaluations import reference
from tests.integration.app.served import run_with, served, settings_for

PROMOTE = "/models/learnloop/m/promote"


async def scripted_engine(request: Json) -> Reply:
    """Knows four checkpoints, of which the last two answer everything and the others nothing."""
    if not request:
        return Reply(body={"data": [{"id": "learnloop/m", "steps": [0, 1, 2, 3]}]})
    if request["model"] in ("learnloop/m@0", "learnloop/m@1"):
        return call("return_final_answer", answer="I don't know", sources=[])
    right = reference(request)
    return call("return_final_answer", answer=right["answer"], sources=right["source_ids"])


RELEASES = "/promotions/learnloop/live/releases"


@asynccontextmanager
async def release_service(data_dir: Path, database_url: str, chat: ScriptedChat) -> AsyncIterator[httpx.AsyncClient]:
    """With a model `m` whose checkpoint 0 is promoted. 2 and 3 answer everything, 0 and 1 nothing."""
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:
        posted = await client.post("/learn-loop", json={"iterations": 3, "model": {"name": "m"}})
        await run_with(client, posted.json()["run_id"], "completed")
        await client.post("/models/learnloop/m/promote", json={"step": 0, "as": "live"})
        yield client


async def started_release(client: httpx.AsyncClient, **request: Json) -> Json:
    accepted = await client.post(RELEASES, json={"step": 2, "skip_trial": True, **request})
    assert accepted.status_code == 202, accepted.text
    return accepted.json()


async def release_events(client: httpx.AsyncClient, release_id: str) -> list[Json]:
    items: list[Json] = (await client.get(f"/releases/{release_id}/events")).raise_for_status().json()["items"]
    return items
