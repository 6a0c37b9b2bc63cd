"""Emails from a run's agent: the real environment on the run's own graph, with the node scores of the checkpoint."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx

from learnloop_sales.synthetic import world_of
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.sales_agent import GRAPH, SUBJECT, WAY
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

PROSPECT = {"prospect": "Pira Solm", "company": "Zolem Works"}
LEARN_LOOP = {
    "graph": GRAPH,
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 8,
    "depth": 5,
    "evaluation": {"every": 2, "scenarios": 1, "samples": 1, "test_scenarios": 1},
}


async def _agent(request: Mapping[str, Any]) -> Reply:
    """Pira's email begins with a look at what the Customer Job leads to. Others babble, or read all and
    cite the way: so the node beside it falls behind."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    if "Pira" in request["messages"][1]["content"]:
        email = call("finalize_email", subject=SUBJECT, body="Hello [b]you[/b]", citations=[WAY[0]])
        return email if turn else call("get_connected_nodes", node_id=WAY[0])
    if turn == 0 and Random(request["seed"]).random() < 0.3:
        return Reply(content="Dear Sir or Madam")
    if turn < len(GRAPH):
        return call("get_relevant_context", node_id=GRAPH[turn]["id"])
    return call("finalize_email", subject=SUBJECT, body="Hello", citations=WAY)


@asynccontextmanager
async def _trained(
    data_dir: Path, database_url: str, learn: Any = None
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client, and a run that is completed; it learned by a script if no `learn` is given."""
    async with scripted_chat(_agent) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), learn or ScriptedLoop(), backend) as client:
            run_id = (await client.post("/learn-loop", json=LEARN_LOOP)).json()["run_id"]
            assert (await run_with(client, run_id, "completed", "failed"))["error"] is None
            yield client, run_id


async def _refusal(client: httpx.AsyncClient, **body: Any) -> tuple[list[Any], str]:
    response = await client.post("/ask", json=body)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    return error["loc"], error["msg"]


async def test_an_email_to_a_prospect(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id):
        task = {**PROSPECT, "role": "Data Lead", "goal": "start a pilot", "start": [WAY[1]]}
        answer = (await client.post("/ask", json={"run_id": run_id, **task})).raise_for_status().json()
        assert answer["email"] == {"subject": SUBJECT, "body": "Hello [b]you[/b]", "citations": [WAY[0]]}
        assert (answer["question"], answer["answer"], answer["source_ids"]) == (None, "Hello [b]you[/b]", [WAY[0]])
        assert answer["success"] is False  # it names nobody and reads nothing
        trajectory = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()
        assert (trajectory["kind"], trajectory["run_id"], trajectory["scenario"]["task"]) == ("ask", run_id, task)


async def test_each_checkpoint_has_the_node_scores_of_its_time(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url, learn_loop) as (client, run_id):

        async def first_shown(**body: Any) -> str:
            answer = (await client.post("/ask", json={"run_id": run_id, **PROSPECT, **body})).raise_for_status().json()
            messages = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()["messages"]
            listing = next(message["content"] for message in messages if message["role"] == "tool")
            return str(listing.split(" | ")[0])

        assert await first_shown(checkpoint=0) == "fact-office"  # all scores are 1: the order given
        assert await first_shown(checkpoint=2) == "fact-lists"
        # With an environment of the request, nothing that the run learned beside its own is taken over.
        environment = {"name": "sales_email", "config": {"graph": GRAPH}}
        assert await first_shown(checkpoint=2, environment=environment) == "fact-office"


async def test_a_synthetic_graph_is_named(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id):
        body = {"run_id": run_id, **PROSPECT, "graph": "test.0.3", "environment": {"name": "sales_email"}}
        answer = (await client.post("/ask", json=body)).raise_for_status().json()
        task = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()["scenario"]["task"]
        assert (task["graph"], task["start"]) == ("test.0.3", world_of("test.0.3").graph.jobs()[:1])


async def test_the_environment_says_what_a_task_lacks(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id):
        mail = {"name": "email_search"}
        no_graph = {"name": "sales_email", "config": {"graph": {"sha256": "0" * 64}}}
        for body, loc, words in (
            ({}, [], "prospect must be"),
            ({"prospect": "Pira"}, [], "company must be"),
            (
                {"question": "Why?"},
                ["question"],
                "environment sales_email has: prospect, company, role, goal, start, graph.",
            ),
            ({**PROSPECT, "prospekt": "x"}, ["prospekt"], "Did you mean prospect?"),
            ({**PROSPECT, "inbox_address": "x"}, ["inbox_address"], "sales_email has: prospect"),
            ({**PROSPECT, "goal": "x" * 1_001}, ["goal"], "1,000 characters"),
            ({"prospect": 5}, ["prospect"], "must be a text"),
            ({**PROSPECT, "start": "nowhere"}, [], "'nowhere'"),
            ({**PROSPECT, "input": {}}, [], "put prospect, company into it"),
            ({"input": {"prospect": "Pira"}}, ["input"], "company must be"),
            ({**PROSPECT, "environment": no_graph}, ["environment", "config", "graph"], "no stored graph"),
            ({"environment": mail, "inbox_address": "test.0.3@inbox.example"}, [], "question must be"),
        ):
            location, message = await _refusal(client, run_id=run_id, **body)
            assert (location, words in message) == (["body", *loc], True), message


async def test_a_whole_input_is_asked_as_it_is(data_dir: Path, database_url: str) -> None:
    async with _trained(data_dir, database_url) as (client, run_id):
        answer = (await client.post("/ask", json={"run_id": run_id, "input": PROSPECT})).raise_for_status().json()
        assert answer["email"]["subject"] == SUBJECT
