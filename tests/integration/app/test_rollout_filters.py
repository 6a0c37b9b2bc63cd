"""A run's rollouts are found by how they went and by what was said in them, and counted over the iterations."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED, database
from tests.integration.app.rewritten_rollouts import rewrite
from tests.integration.app.served import run_with, served, settings_for


class Found:
    """A client of a service with one run, two of whose four training rollouts were rewritten."""

    def __init__(self, client: httpx.AsyncClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    async def ids(self, **query: Any) -> list[str]:
        """The training rollouts that match, as ITERATION-NUMBER."""
        where = f"/runs/{self._run_id}/trajectories"
        page = (await self._client.get(where, params={"kind": "train"} | query)).raise_for_status().json()
        return ["-".join(rollout["id"].split("-")[-2:]) for rollout in page["items"]]

    async def outcomes(self, **query: str) -> Any:
        return (await self._client.get(f"/runs/{self._run_id}/outcomes", params=query)).raise_for_status().json()

    async def status(self, **query: str) -> int:
        return (await self._client.get(f"/runs/{self._run_id}/trajectories", params=query)).status_code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Found]:
    async with (
        database(postgres, MIGRATED) as url,
        served(settings_for(tmp_path_factory.mktemp("found"), url), ScriptedLoop()) as client,
    ):
        body = {"iterations": 2, "model": {"name": "a"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await rewrite(url, run_id)
        yield Found(client, run_id)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["1-0", "1-1", "2-0", "2-1"]),
        ({"success": "true"}, ["1-1", "2-1"]),
        ({"success": "false"}, ["1-0", "2-0"]),
        ({"end": "gave_up"}, ["2-1"]),
        ({"end": "failed"}, ["1-0"]),
        ({"end": "answered"}, []),
        ({"part": "turns"}, ["2-1"]),
        ({"part": "answer"}, ["1-0", "1-1", "2-0"]),
        ({"tool": "search_inbox"}, ["2-1"]),
        ({"tool": "search"}, []),
        ({"text": "KICKOFF"}, ["2-1"]),
        ({"text": "zoë."}, ["2-1"]),
        ({"text": '"kickoff" (50%) is on\n12'}, ["2-1"]),
        ({"text": "no emails"}, ["2-1"]),
        ({"text": "search_in"}, ["2-1"]),
        ({"text": "budget"}, ["2-1"]),
        ({"text": "assistant"}, []),
        ({"text": "k.*f"}, []),
        ({"text": '" || true'}, []),
        ({"text": "the answer", "success": "true", "iteration": 1}, ["1-1"]),
    ],
)
async def test_rollouts_are_found(found: Found, query: dict[str, Any], expected: list[str]) -> None:
    assert await found.ids(**query) == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_a_filter_that_matches_nothing_by_itself_is_refused(found: Found) -> None:
    assert [await found.status(**{name: ""}) for name in ("text", "end", "tool", "part")] == [422] * 4
    assert await found.status(success="perhaps") == 422


@pytest.mark.asyncio(loop_scope="module")
async def test_ends_and_parts_are_counted_over_the_iterations(found: Found) -> None:
    assert await found.outcomes() == {
        "every": 1,
        "iterations": [1, 2],
        "ends": [
            {"end": "", "counts": [1, 1]},
            {"end": "failed", "counts": [1, 0]},
            {"end": "gave_up", "counts": [0, 1]},
        ],
        "parts": [{"part": "answer", "means": [1.0, 0.5]}, {"part": "turns", "means": [0.0, 0.125]}],
    }
    assert (await found.outcomes(kind="evaluation"))["iterations"] == [0, 2]
    assert (await found.outcomes(kind="ask"))["iterations"] == []
