"""Learn-loops on a graph: CoDreamer's body, graphs that cannot be used, and where the graph goes."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.fakes.sales_agent import GRAPH
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

JOB, LISTS, OFFICE, FEATURE = GRAPH
UNKNOWN = {"sha256": "0" * 64}
PROSPECTS = [{"prospect": f"Person {n}", "company": "Zolem Works"} for n in range(3)]


async def _run(client: httpx.AsyncClient, **body: Any) -> Any:
    """The accepted run of that body, once it is completed."""
    response = await client.post("/learn-loop", json={"iterations": 1, **body})
    assert response.status_code == 202, response.text
    return await run_with(client, response.json()["run_id"], "completed")


async def _refusal(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[list[Any], str]:
    """Where the one error is, and what it says."""
    text = json.dumps(body)  # unlike httpx, it writes an infinity
    response = await client.post("/learn-loop", content=text, headers={"content-type": "application/json"})
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    (error,) = response.json()["errors"]
    return error["loc"], error["msg"]


async def _stored(database_url: str) -> int:
    """How many runs and documents there are."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        cursor = await connection.execute("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM document)")
        (count,) = await cursor.fetchone() or (0,)
    return int(count)


def _renamed(word: str) -> list[dict[str, Any]]:
    return [{**node, "content": f"{node['content']} {word}"} for node in GRAPH]


async def test_codreamers_body_starts_the_sales_agent_on_its_graph(client: httpx.AsyncClient) -> None:
    response = await client.post("/learn-loop", json={"graph": GRAPH, "iterations": 3, "depth": 5})
    accepted = response.json()
    assert response.status_code == 202
    assert accepted["results_path"] == f"/runs/{accepted['run_id']}/results"
    assert accepted["links"]["self"] == f"/runs/{accepted['run_id']}"
    run = await run_with(client, accepted["run_id"], "completed")
    assert (run["environment"], run["judge"]) == ("sales_email", "grounding")
    assert (run["request"]["iterations"], run["request"]["max_turns"]) == (3, 5)
    assert {"graph", "depth"}.isdisjoint(run["request"])


async def test_the_run_keeps_a_reference_and_the_graph_has_a_place_of_its_own(client: httpx.AsyncClient) -> None:
    run = await _run(client, graph=GRAPH)
    reference = run["request"]["environment"]["config"]["graph"]
    assert reference == {"sha256": reference["sha256"], "nodes": 4, "edges": 3}
    response = await client.get(f"/runs/{run['run_id']}/graph")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"graph": GRAPH}
    assert (await client.get(f"/graphs/{reference['sha256']}")).json() == {"graph": GRAPH}
    again = await _run(client, graph=[dict(reversed(node.items())) for node in GRAPH])
    assert again["request"]["environment"]["config"]["graph"] == reference


async def test_a_run_without_a_graph_has_none_to_show(client: httpx.AsyncClient) -> None:
    run = await _run(client)
    assert (await client.get(f"/runs/{run['run_id']}/graph")).status_code == 404
    assert (await client.get("/runs/01K/graph")).status_code == 404


async def test_runs_at_once_have_their_own_graphs(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=2), ScriptedLoop()) as client:
        runs = await asyncio.gather(*(_run(client, graph=_renamed(word)) for word in ("north", "south")))
        for run, word in zip(runs, ("north", "south"), strict=True):
            assert (await client.get(f"/runs/{run['run_id']}/graph")).json() == {"graph": _renamed(word)}


async def test_a_stored_graph_and_its_scenarios_stand_for_themselves(client: httpx.AsyncClient) -> None:
    graph = (await client.post("/graphs", json={"graph": GRAPH})).json()
    body = {"environment": "sales_email", "scenarios": PROSPECTS, "graph": {"sha256": graph["sha256"]}}
    scenarios = (await client.post("/scenarios", json=body)).json()
    config = {"graph": {"sha256": graph["sha256"]}, "scenarios": {"sha256": scenarios["sha256"]}}
    run = await _run(client, environment={"name": "sales_email", "config": config})
    stored = run["request"]["environment"]["config"]
    assert stored["graph"] == {"sha256": graph["sha256"], "nodes": 4, "edges": 3}
    assert stored["scenarios"] == {"sha256": scenarios["sha256"], "count": 3}
    # What GET /runs/{id} shows is a request again.
    assert (await _run(client, environment=run["request"]["environment"]))["request"]["environment"]["config"] == stored


async def test_scenarios_beside_a_graph_are_stored_too(client: httpx.AsyncClient) -> None:
    run = await _run(client, graph=GRAPH, environment={"config": {"scenarios": PROSPECTS, "node_scores": "top_half"}})
    config = run["request"]["environment"]["config"]
    assert config["node_scores"] == "top_half"
    assert config["scenarios"]["count"] == 3
    response = await client.get(f"/scenarios/{config['scenarios']['sha256']}")
    assert response.json() == {"scenarios": PROSPECTS}


BAD_GRAPHS: list[tuple[Any, str]] = [
    ([], "at least two nodes"),
    ({"id": "x"}, "list"),
    ("a graph", "list"),
    ([JOB, {**LISTS, "edge": []}, OFFICE], "no node is a Product Feature"),
    ([LISTS, OFFICE, FEATURE], "no node is a Customer Job"),
    ([*GRAPH, OFFICE], "two nodes have the id 'fact-office'"),
    ([JOB, OFFICE, FEATURE], "node 'job-quotes' has an edge to 'fact-lists', which does not exist"),
    ([*GRAPH, {"content": "x"}], "node number 4"),
    ([*GRAPH, {"id": "lonely"}], "node 'lonely' needs a content"),
    ([*GRAPH, {**OFFICE, "id": "self", "edge": [{"target_id": "self"}]}], "node 'self' has an edge to itself"),
    ([*GRAPH, {**OFFICE, "id": "torn", "edge": "x"}], "edges of node 'torn' are not a list"),
    ([JOB, {**LISTS, "edge": []}, OFFICE, FEATURE], "no path leads from a Customer Job ('job-quotes')"),
    ([*GRAPH, {**OFFICE, "id": "long", "content": "x" * 20_001}], "node 'long' has 20001 characters"),
    ([{**OFFICE, "id": f"n{number}"} for number in range(10_001)], "at most 10000"),
    ([*GRAPH, {**OFFICE, "id": "x", "weight": float("inf")}], "JSON compliant"),
    (UNKNOWN, "no stored graph has the SHA-256"),
]


async def test_a_graph_that_cannot_be_used(client: httpx.AsyncClient, database_url: str) -> None:
    for graph, words in BAD_GRAPHS:
        location, message = await _refusal(client, {"graph": graph})
        assert (location, words in message) == (["body", "graph"], True), (message, words)
    assert await _stored(database_url) == 0


BAD_COMBINATIONS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"graph": GRAPH, "environment": {"name": "email_search"}}, ["graph"], "not for email_search"),
    ({"graph": GRAPH, "environment": {"config": {"graph": GRAPH}}}, ["graph"], "Give either graph or"),
    ({"graph": GRAPH, "depth": 3, "max_turns": 3}, ["depth"], "the same"),
    ({"depth": 3}, ["depth"], "max_turns"),
    ({"graph": GRAPH, "depth": 0}, ["depth"], "greater"),
    ({"graph": GRAPH, "environment": {"config": {"scenarios": [{}]}}}, ["environment", "config"], "scenarios"),
    ({"graph": GRAPH, "environment": {"config": {"colour": 1}}}, ["environment", "config"], "colour"),
    (
        {"graph": GRAPH, "environment": {"config": {"scenarios": UNKNOWN}}},
        ["environment", "config", "scenarios"],
        "no stored scenarios",
    ),
    ({"environment": {"config": {"graph": GRAPH}}}, ["environment", "config"], "graph"),
]


async def test_what_does_not_go_with_a_graph(client: httpx.AsyncClient, database_url: str) -> None:
    for body, loc, words in BAD_COMBINATIONS:
        location, message = await _refusal(client, body)
        assert (location, words in message) == (["body", *loc], True), (message, words)
    assert await _stored(database_url) == 0


async def test_nothing_is_stored_of_a_run_whose_model_is_busy(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={0: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        for word, status in (("north", 202), ("south", 409)):
            body = {"graph": _renamed(word), "model": {"name": "agent"}}
            assert (await client.post("/learn-loop", json=body)).status_code == status
            assert await _stored(database_url) == 2


async def test_two_judges_are_a_blend(client: httpx.AsyncClient) -> None:
    parts = [{"name": "grounding", "config": {}, "weight": 0.75}, {"name": "feedback", "config": {}, "weight": 0.25}]
    run = await _run(client, graph=GRAPH, judge=parts)
    assert run["judge"] == "blend"
    assert run["request"]["judge"] == {"name": "blend", "config": {"judges": parts}}


async def test_a_judge_without_a_name_is_the_environments_own(client: httpx.AsyncClient) -> None:
    assert (await _run(client, judge={"config": {}}))["request"]["judge"] == {"name": "reference", "config": {}}
    assert (await _run(client, judge=None, graph=GRAPH))["request"]["judge"] == {"name": "grounding", "config": {}}


GROUNDING = {"name": "grounding", "weight": 1}
BAD_JUDGES: list[tuple[Any, list[Any]]] = [
    ([], []),
    ([GROUNDING], []),
    ([GROUNDING] * 9, []),
    ([GROUNDING, {"name": "grounding"}], [1, "weight"]),
    ([GROUNDING, {"name": "grounding", "weight": 0}], [1, "weight"]),
    ([GROUNDING, {"name": "oracle", "weight": 1}], [1, "name"]),
    ([GROUNDING, {"name": "grounding", "weight": 1, "config": {"a": 1}}], [1, "config"]),
    ({"name": "../up"}, ["name"]),
    ({"weight": 1}, ["weight"]),
    ("grounding", []),
]


async def test_judges_that_are_none(client: httpx.AsyncClient) -> None:
    for judge, loc in BAD_JUDGES:
        location, message = await _refusal(client, {"graph": GRAPH, "judge": judge})
        assert location == ["body", "judge", *loc], message
