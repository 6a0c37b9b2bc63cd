"""The Python client against the real service, sync and async, over a network that loses replies."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from learnloop import AsyncLearnloop, InvalidRequest, Learnloop, NotAuthenticated, NotFound
from tests.fakes.lossy_proxy import lossy_proxy
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY
from tests.integration.app.served import served, settings_for


async def result_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a method of either client gives; a sync one blocks, so it gets a thread."""
    returned = await asyncio.to_thread(call, *arguments, **named)
    return await returned if inspect.isawaitable(returned) else returned


async def listed(events: Any) -> list[Any]:
    if isinstance(events, AsyncIterator):
        return [event async for event in events]
    return await asyncio.to_thread(list, events)


@pytest.mark.parametrize("kind", [Learnloop, AsyncLearnloop])
async def test_a_run_from_start_to_end(data_dir: Path, database_url: str, kind: Callable[..., Any]) -> None:
    lost: list[str] = []

    async def loses(moment: str, request: str) -> bool:
        """The first reply to each request."""
        if moment == "reply" and request not in lost:
            lost.append(request)
            return True
        return False

    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as direct:
        async with lossy_proxy(str(direct.base_url).rstrip("/")) as proxy:
            proxy.loses = loses
            client = kind(proxy.url.removesuffix("/v1"))
            run = await result_of(client.learn_loop, environment={"name": "email_search"}, iterations=2)
            ended = await result_of(run.wait, 60)
            assert (ended["status"], ended["run_id"]) == ("completed", run.id)
            assert (await result_of(run.state))["progress"]["iterations_done"] == 2
            started = (await direct.get("/runs")).json()["items"]
            assert [row["run_id"] for row in started] == [run.id]
            assert lost == ["POST /learn-loop", f"GET /runs/{run.id}"]
            await result_of(client.close)
        client = kind(str(direct.base_url))
        events = await listed(client.run(run.id).events())
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "run.completed"
        assert await listed(client.run(run.id).events(after=len(events) - 1)) == events[-1:]
        with pytest.raises(NotFound):
            await result_of(client.run("01KAJ3M7F5T2V8Q9X0C4D6E8GA").cancel)
        with pytest.raises(InvalidRequest) as refused:
            await result_of(client.learn_loop, judge={"name": "nobody"})
        assert refused.value.errors[0]["loc"] == ["body", "judge", "name"]
        await _stores_demonstrations(client, data_dir / "talks.jsonl")
        await result_of(client.close)


async def _stores_demonstrations(client: Any, file: Path) -> None:
    talks: list[Any] = [
        {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
    ] * 2
    stored = await result_of(client.store_demonstrations, "talks", talks)
    assert (stored["name"], stored["version"], stored["count"]) == ("talks", 1, 2)
    file.write_text("".join(f"{json.dumps(talk)}\n" for talk in talks), encoding="utf-8")
    assert await result_of(client.store_demonstrations, "talks", file) == stored
    with pytest.raises(InvalidRequest, match="line 2: messages"):
        await result_of(client.store_demonstrations, "talks", [*talks[:1], {"messages": []}])


async def test_the_key_is_sent(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, require_keys="always", operator_key=OPERATOR_KEY)
    async with served(settings, ScriptedLoop()) as direct:
        for key, error in ((OPERATOR_KEY, NotFound), ("llk_wrong", NotAuthenticated)):
            async with AsyncLearnloop(str(direct.base_url), key) as client:
                with pytest.raises(error):
                    await client.run("x").state()


@pytest.mark.parametrize("url", ["service", "ftp://service", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a service"):
        Learnloop(url)
