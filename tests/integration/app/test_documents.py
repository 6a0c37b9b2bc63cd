"""Graphs and scenarios that are stored before a learn-loop needs them, and how large a body may be."""

from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.sales_agent import GRAPH
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

PROSPECTS = [{"prospect": f"Person {n}", "company": "Zolem Works", "start": "job-quotes"} for n in range(5)]
JSON_TYPE = {"content-type": "application/json"}


def _scenarios(**changes: Any) -> dict[str, Any]:
    return {"environment": "sales_email", "scenarios": PROSPECTS, "graph": GRAPH, **changes}


async def _refusal(client: httpx.AsyncClient, path: str, body: Any) -> tuple[list[Any], str]:
    response = await client.post(path, json=body)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    return error["loc"], error["msg"]


async def test_a_graph_is_known_by_its_content(client: httpx.AsyncClient) -> None:
    response = await client.post("/graphs", json={"graph": GRAPH})
    assert response.status_code == 201
    stored = response.json()
    assert (stored["nodes"], stored["edges"]) == (4, 3)
    assert stored["links"] == {"self": f"/graphs/{stored['sha256']}"}
    assert (await client.get(stored["links"]["self"])).json() == {"graph": GRAPH}
    reordered = [dict(reversed(node.items())) for node in GRAPH]
    assert (await client.post("/graphs", json={"graph": reordered})).json() == stored
    other = (await client.post("/graphs", json={"graph": GRAPH[::-1]})).json()
    assert other["sha256"] != stored["sha256"]


async def test_the_hash_is_of_the_canonical_json(client: httpx.AsyncClient) -> None:
    nodes = [
        {"id": "b", "content": "Product Feature: ü", "edges": [], "weight": 1.50},
        {"id": "a", "content": "Customer Job: x", "edges": [{"target": "b"}]},
    ]
    canonical = (
        '[{"content":"Product Feature: ü","edges":[],"id":"b","weight":1.5},'
        '{"content":"Customer Job: x","edges":[{"target":"b"}],"id":"a"}]'
    )
    stored = (await client.post("/graphs", json={"graph": nodes})).json()
    assert stored["sha256"] == sha256(canonical.encode()).hexdigest()
    assert stored["edges"] == 1


async def test_scenarios_are_checked_on_their_graph(client: httpx.AsyncClient) -> None:
    response = await client.post("/scenarios", json=_scenarios())
    assert response.status_code == 201, response.text
    stored = response.json()
    assert stored["count"] == 5
    assert (await client.get(stored["links"]["self"])).json() == {"scenarios": PROSPECTS}
    assert (await client.get(f"/graphs/{stored['sha256']}")).status_code == 404


async def test_bad_documents_name_their_field(client: httpx.AsyncClient) -> None:
    unknown = {"sha256": "f" * 64}
    bad: list[tuple[str, Any, list[str], str]] = [
        ("/graphs", {"graph": GRAPH[1:]}, ["graph"], "no node is a Customer Job"),
        ("/graphs", {"graph": {}}, ["graph"], "list"),
        ("/graphs", {}, ["graph"], "required"),
        ("/graphs", [], [], "object"),
        ("/graphs", {"graph": GRAPH, "name": "x"}, ["name"], "Unknown field"),
        ("/graphs", {"graph": [{"id": "a\x00b"}]}, [], "U+0000"),
        ("/scenarios", _scenarios(graph=GRAPH[1:]), ["graph"], "no node is a Customer Job"),
        ("/scenarios", _scenarios(graph=unknown), ["graph"], "no stored graph"),
        ("/scenarios", _scenarios(environment="chess"), ["environment"], "Unknown environment"),
        ("/scenarios", _scenarios(graph=None), ["scenarios"], "need a graph"),
        ("/scenarios", _scenarios(scenarios=[*PROSPECTS, {"prospect": "x"}]), ["scenarios"], "number 5: company"),
        ("/scenarios", _scenarios(scenarios=[*PROSPECTS, {**PROSPECTS[0], "start": "x"}]), ["scenarios"], "node 'x'"),
    ]
    for path, body, loc, named in bad:
        location, message = await _refusal(client, path, body)
        assert (location, named in message) == (["body", *loc], True), (message, named)


async def test_documents_that_are_not_there(client: httpx.AsyncClient) -> None:
    for kind in ("graphs", "scenarios"):
        assert (await client.get(f"/{kind}/{'0' * 64}")).status_code == 404
        assert (await client.get(f"/{kind}/%00")).status_code == 422


async def test_bodies_with_a_graph_may_be_large_and_no_others(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, max_graph_bytes=2_000_000)
    async with served(settings, ScriptedLoop()) as client:

        def chunks(body: bytes) -> Iterator[bytes]:
            yield from (body[start : start + 65_536] for start in range(0, len(body), 65_536))

        async def statuses(path: str, size: int) -> set[int]:
            body = b'{"graph": []}'.ljust(size)

            async def unannounced() -> AsyncIterator[bytes]:
                for chunk in chunks(body):
                    yield chunk

            responses = [
                await client.post(path, content=payload, headers=JSON_TYPE) for payload in (body, unannounced())
            ]
            return {response.status_code for response in responses}

        for path in ("/learn-loop", "/graphs", "/scenarios"):
            assert await statuses(path, 2_000_000) == {422}
            assert await statuses(path, 2_000_001) == {413}
        assert await statuses("/ask", 1_000_000) == {422}
        assert await statuses("/ask", 1_000_001) == {413}
