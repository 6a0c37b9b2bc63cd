"""Fork and delete runs, their place in the queue, and the endpoints that a request brings."""

import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from standardwebhooks import Webhook

from tests.conditions import until
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.sales_runs import SALES, completed, sales_service
from tests.integration.app.served import run_with, served, settings_for


async def _post(client: httpx.AsyncClient, **body: Any) -> str:
    response = await client.post("/learn-loop", json={"iterations": 2, **body})
    assert response.status_code == 202, response.text
    return str(response.json()["run_id"])


async def _rows(database_url: str, query: str) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        cursor = await connection.execute(query.encode())
        return [] if cursor.description is None else await cursor.fetchall()


async def _events(client: httpx.AsyncClient, run_id: str) -> list[Any]:
    events: list[Any] = (await client.get(f"/runs/{run_id}/events")).json()["items"]
    return events


async def test_a_fork_goes_on_from_a_checkpoint_with_changed_settings(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        parent = await _post(client, model={"name": "agent"}, seed=7, learning_rate=0.001)
        await run_with(client, parent, "completed")
        response = await client.post(
            f"/runs/{parent}/fork",
            json={"checkpoint": 1, "iterations": 1, "evaluation": {"every": 3}, "model": {"name": "other"}},
        )
        assert response.status_code == 202, response.text
        run = await run_with(client, response.json()["run_id"], "completed")
        forked_events = [event for event in await _events(client, parent) if event["type"] == "run.forked"]
        created = (await _events(client, run["run_id"]))[0]
        changed = {"learning_rate": 0.002, "iterations": 2}
        default = (await client.post(f"/runs/{parent}/fork", json=changed)).json()["run_id"]
        again = (await client.get(f"/runs/{default}")).json()
        assert (again["parent"], again["name"]) == ({"run_id": parent, "step": 2}, "fork at step 2 · lr 0.002")
    assert run["model"] == {"project": "learnloop", "name": "other", "base_model": "learnloop/agent@1"}
    assert run["parent"] == created["data"]["parent"] == {"run_id": parent, "step": 1}
    assert forked_events[0]["data"] == {"run_id": run["run_id"], "step": 1}
    request = run["request"]
    assert (request["seed"], request["learning_rate"], request["iterations"]) == (7, 0.001, 1)
    assert (request["evaluation"]["every"], request["evaluation"]["samples"]) == (3, 2)


async def test_what_cannot_be_forked_is_told(data_dir: Path, database_url: str) -> None:
    backend = ScriptedBackend()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        parent = await _post(client, model={"name": "agent"})
        await run_with(client, parent, "completed")

        async def refusal(**body: Any) -> tuple[int, str]:
            response = await client.post(f"/runs/{parent}/fork", json=body)
            return response.status_code, response.json()["detail"]

        assert await refusal(checkpoint=3) == (404, f"Run {parent} has no checkpoint 3.")
        assert (await refusal(model={"name": "agent"}))[0] == 409
        assert (await refusal(environment={"name": "sales_email"}))[0] == 422
        assert (await refusal(backend="embedded"))[0] == 422
        assert (await refusal(model={"base_model": "learnloop/tiny"}))[0] == 422
        await _rows(database_url, "UPDATE checkpoint SET deleted_at = now() WHERE step = 1")
        assert await refusal(checkpoint=1) == (409, f"Checkpoint 1 of run {parent} was deleted.")
        backend.policies.clear()
        assert "Unknown base model 'learnloop/agent@2'" in (await refusal())[1]
        assert (await client.post("/runs/none/fork", json={})).status_code == 404
        assert [event["type"] for event in await _events(client, parent)].count("run.forked") == 0


async def test_a_checkpoint_is_a_base_model_within_its_project(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await run_with(client, await _post(client, model={"name": "agent"}), "completed")
        for base, project, status in (
            ("agent@2", "learnloop", 202),
            ("agent@3", "learnloop", 422),
            ("agent@2", "b", 422),
        ):
            model = {"base_model": f"learnloop/{base}", "project": project}
            response = await client.post("/learn-loop", json={"iterations": 1, "model": model})
            assert response.status_code == status, response.text


async def test_a_fork_has_what_its_parents_environment_had_learned(data_dir: Path, database_url: str) -> None:
    async with sales_service(data_dir, database_url) as client:
        parent = await completed(client, **SALES)

        async def scores(run_id: str, iteration: int) -> Any:
            reply = await client.get(f"/runs/{run_id}/node-scores", params={"iteration": iteration})
            return reply.raise_for_status().json()["node_scores"]

        body = {"checkpoint": 1, "iterations": 1}
        forked = (await client.post(f"/runs/{parent['run_id']}/fork", json=body)).json()["run_id"]
        await run_with(client, forked, "completed")
        learned = await scores(parent["run_id"], 1)
        assert learned != await scores(parent["run_id"], 0)
        assert await scores(forked, 0) == learned
        assert (await client.delete(f"/runs/{parent['run_id']}")).status_code == 200
        assert (await client.get(f"/runs/{forked}/verify")).json()["ok"]
        assert (await client.get(f"/runs/{forked}")).json()["parent"] is None


async def test_a_deleted_run_leaves_nothing(data_dir: Path, database_url: str) -> None:
    backend = ScriptedBackend()
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop(), backend) as client:
        first, second = [
            (await run_with(client, await _post(client, model={"name": "agent"}), "completed"))["run_id"]
            for _ in range(2)
        ]
        assert (await client.delete(f"/runs/{first}")).json()["run_id"] == first
        assert backend.policies  # the other run's
        assert (await client.get(f"/runs/{first}")).status_code == 404
        assert (await client.delete(f"/runs/{first}")).status_code == 404
        assert [path.name for path in (data_dir / "runs").glob("0*")] == [second]
        await client.delete(f"/runs/{second}")
        assert not backend.policies
    for table in ("run", "iteration", "trajectory", "event", "checkpoint", "journal", "evaluation"):
        assert await _rows(database_url, f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_model_that_a_waiting_fork_needs_stays(data_dir: Path, database_url: str) -> None:
    loop, backend = ScriptedLoop(), ScriptedBackend()
    async with served(settings_for(data_dir, database_url), loop, backend) as client:
        parent = await _post(client, model={"name": "agent"})
        await run_with(client, parent, "completed")
        loop.gates[0] = threading.Event()
        fork = (await client.post(f"/runs/{parent}/fork", json={"iterations": 1})).json()["run_id"]
        await client.delete(f"/runs/{parent}")
        assert "agent" in {model.name for model in backend.policies}
        loop.gates[0].set()
        await run_with(client, fork, "completed")


async def test_a_run_under_way_is_not_deleted(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = await _post(client)
        await until(loop.has_entered(1).is_set)
        refused = await client.delete(f"/runs/{run_id}")
        assert (refused.status_code, refused.json()["allowed"]) == (409, ["cancel", "pause", "fork"])
        loop.gates[1].set()
        await run_with(client, run_id, "completed")


async def test_files_of_runs_that_are_gone_are_removed_at_the_next_start(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop()) as client:
        ids = [await _post(client, iterations=1) for _ in range(2)]
        for run_id in ids:
            await run_with(client, run_id, "completed")
    await _rows(database_url, f"DELETE FROM run WHERE id = '{ids[0]}'")  # as if it had died after the commit
    (data_dir / "runs" / "notes").mkdir()
    async with served(settings, ScriptedLoop()):
        assert sorted(path.name for path in (data_dir / "runs").iterdir()) == [".database", ids[1], "notes"]
    (data_dir / "runs" / ".database").write_text("another:5432/one")
    await _rows(database_url, "DELETE FROM run")
    async with served(settings, ScriptedLoop()):
        assert (data_dir / "runs" / ids[1]).is_dir()


async def test_a_queued_run_says_why_it_waits(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={0: threading.Event()})
    settings = settings_for(data_dir, database_url, max_concurrent_runs=1)
    async with served(settings, loop) as client:
        ids = [await _post(client, model={"project": "mail" if n < 2 else "sales"}) for n in range(4)]
        await run_with(client, ids[0], "running")
        runs = [(await client.get(f"/runs/{run_id}")).json() for run_id in ids]
        assert [run["queue"] for run in runs] == [
            None,
            {"position": 1, "reason": "1 run is ahead of it."},
            {"position": 0, "reason": "It is next and starts when a worker is free: 1 run in progress."},
            {"position": 2, "reason": "2 runs are ahead of it."},
        ]
        assert not any("owner" in run for run in runs)
        assert runs[0]["attempts"] == 1
        await client.post(f"/runs/{ids[1]}/pause")
        assert (await client.get(f"/runs/{ids[1]}")).json()["wait_reason"] == "paused by local"
        limited = settings_for(data_dir / "second", database_url, max_runs_per_project=1, max_concurrent_runs=0)
        async with served(limited, ScriptedLoop()) as second:
            await client.post(f"/runs/{ids[1]}/resume")
            queue = (await second.get(f"/runs/{ids[1]}")).json()["queue"]
            assert queue["reason"] == "The project has reached its limit of 1 run in progress."
        loop.gates[0].set()


async def test_a_request_brings_its_own_webhooks(data_dir: Path, database_url: str) -> None:
    async with faulty_receiver() as receiver:
        settings = settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8")
        async with served(settings, ScriptedLoop()) as client:
            hook = {"url": receiver.url, "events": ["run.created", "run.completed"]}
            headers = {"idempotency-key": "one"}
            body = {"iterations": 1, "webhooks": [hook]}
            accepted = (await client.post("/learn-loop", headers=headers, json=body)).json()
            run = await run_with(client, accepted["run_id"], "completed")
            await until(lambda: len(receiver.arrivals) == 2)
            again = await client.post("/learn-loop", headers=headers, json=body)
            assert (again.status_code, "shown only once" in again.json()["detail"]) == (409, True)
            local = await client.post("/learn-loop", json={"webhooks": [{"url": "http://10.0.0.1/"}]})
            assert local.json()["errors"][0]["loc"] == ["body", "webhooks", 0, "url"]
            assert len((await client.get("/runs")).json()["items"]) == 1
            assert (await client.post("/learn-loop", json={"webhooks": [hook] * 11})).status_code == 422
    [secret] = [webhook["secret"] for webhook in accepted["webhooks"]]
    assert [arrival.body["type"] for arrival in receiver.arrivals] == ["run.created", "run.completed"]
    Webhook(secret).verify(receiver.arrivals[0].raw, receiver.arrivals[0].headers)
    assert "webhooks" not in run["request"]
    assert await _rows(database_url, "SELECT body FROM idempotency_key") == [(None,)]


@pytest.mark.parametrize("stream_after", [0, 4])
async def test_the_stream_of_a_run_that_was_forked_ends(data_dir: Path, database_url: str, stream_after: int) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = await _post(client)
        await run_with(client, run_id, "completed")
        await client.post(f"/runs/{run_id}/fork", json={"iterations": 1})
        headers = {"accept": "text/event-stream", "last-event-id": str(stream_after)}
        reply = await client.get(f"/runs/{run_id}/events", headers=headers)
        assert "event: run.forked" in reply.text
