"""Evaluations over HTTP: models of the service and prompted ones on the same scenarios."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.operations.prune import prune
from learnloop_service.environment.json_type import Json
from tests.conditions import answered, until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.fakes.weave_server import weave_server
from tests.fakes.webhook_receiver import receiver
from tests.fonts import HAS_FONT
from tests.integration.app.ended_evaluations import ended, reference
from tests.integration.app.held_leases import held_past_its_lease
from tests.integration.app.served import run_with, served, settings_for

TINY = "learnloop/tiny"
SMALL = {"scenarios": 4, "samples": 2}


async def _clever(request: Json) -> Reply:
    """Right if it is the model `clever`; any other gives up."""
    if "clever" not in request["model"]:
        return call("return_final_answer", answer="I don't know", sources=[])
    right = reference(request)
    return call("return_final_answer", answer=right["answer"], sources=right["source_ids"])


@asynccontextmanager
async def _service(
    data_dir: Path, database_url: str, chat: ScriptedChat, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    server = {"base_url": chat.url, "key": "sk-prompted"}
    price = {"usd_per_million_prompt_tokens": 1_000, "usd_per_million_completion_tokens": 1_000}
    models: list[Json] = [{"model": f"openai/{name}", **server} for name in ("clever", "broken")]
    models += [{"name": "openai/dear", "model": "openai/clever", **server, **price}]
    settings = settings_for(data_dir, database_url, models=models, **more)
    async with served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:
        yield client


async def _start(client: httpx.AsyncClient, **request: Any) -> str:
    posted = await client.post("/evaluations", json=request)
    assert posted.status_code == 202, posted.text
    id: str = posted.json()["evaluation_id"]
    return id


def _prompted(name: str) -> Json:
    return {"prompted": f"openai/{name}"}


async def test_models_are_compared_on_the_same_scenarios_and_figures_can_be_traced(
    data_dir: Path, database_url: str
) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:
        id = await _start(client, models=[{"model": TINY, "label": "base"}, _prompted("clever")], **SMALL)
        evaluation = await ended(client, id)
        assert (evaluation["status"], evaluation["error"], evaluation["done"], evaluation["total"]) == (
            "completed",
            None,
            16,
            16,
        )
        base, clever = evaluation["report"]["models"]
        assert (base["label"], base["kind"], clever["label"]) == ("base", "trained", "openai/clever")
        assert clever["success"] == {"mean": 1.0, "low": pytest.approx(0.51, abs=1e-3), "high": 1.0}  # Wilson, of 4
        assert (base["success"]["mean"], base["errors"]) == (0.0, {"gave_up": 8})
        assert (clever["difference"]["success"]["mean"], base["difference"]["success"]) == (1.0, None)
        assert (clever["sources"]["mean"], clever["turns"]["mean"], clever["rollouts"]) == (1.0, 1.0, 8)
        assert clever["prompt_tokens"] > 0
        assert evaluation["report"]["compared"]["success"] == 4

        rows: list[Json] = []
        cursor = None
        while True:
            query = {"limit": 5} | ({"cursor": cursor} if cursor else {})
            part = (await client.get(f"/evaluations/{id}/trajectories", params=query)).raise_for_status().json()
            rows += part["items"]
            if (cursor := part["next_cursor"]) is None:
                break
        assert Counter((row["model"], row["success"]) for row in rows) == {(TINY, False): 8, ("openai/clever", True): 8}
        assert len({row["scenario_id"] for row in rows}) == 4
        whole = (await client.get(f"/trajectories/{rows[0]['id']}")).raise_for_status().json()
        assert whole["messages"]
        assert whole["score_explanation"]

        report = await client.get(f"/evaluations/{id}/report")
        assert report.headers["content-type"].startswith("text/markdown")
        assert "| openai/clever | 100.0% [51.0, 100.0] | +100.0% [+100.0, +100.0] |" in report.text
        plot = await client.get(f"/evaluations/{id}/report", params={"form": "svg"})
        assert plot.headers["content-disposition"].startswith("attachment")
        assert plot.text.startswith("<svg ")
        listed = (await client.get("/evaluations")).json()["items"]
        assert [(summary["evaluation_id"], summary["models"]) for summary in listed] == [
            (id, ["base", "openai/clever"])
        ]
        assert (await client.delete(f"/evaluations/{id}")).status_code == 200
        assert (await client.get(f"/trajectories/{rows[0]['id']}")).status_code == 404
    seeds = [(request["model"], request["seed"]) for request in chat.requests]
    assert {seed for model, seed in seeds if model == TINY} == {seed for model, seed in seeds if model != TINY}
    assert "sk-prompted" not in json.dumps(evaluation)


async def test_a_run_is_compared_with_its_base_in_its_own_environment(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:
        posted = await client.post(
            "/learn-loop", json={"iterations": 2, "evaluation": {"seed": 7}, "max_turns": 3, "model": {"name": "m"}}
        )
        run = await run_with(client, posted.json()["run_id"], "completed")
        evaluation = await ended(client, await _start(client, run_id=run["run_id"], scenarios=2))
        assert evaluation["status"] == "completed"
        request = evaluation["request"]
        assert (request["seed"], request["max_turns"], request["judge"]["name"]) == (7, 3, "reference")
        step = run["best_checkpoint"]["step"]
        assert [(model["label"], model["model"], model["step"]) for model in request["models"]] == [
            ("base", TINY, None),
            ("trained", f"learnloop/m@{step}", step),
        ]
        newest = await client.post("/evaluations", json={"models": [{"model": "learnloop/m"}], "scenarios": 1})
        assert newest.json()["models"] == ["learnloop/m@2"]


async def test_a_dead_worker_is_followed_by_one_that_repeats_nothing(data_dir: Path, database_url: str) -> None:
    may_answer, numbers = asyncio.Event(), itertools.count(1)

    async def slow(request: Json) -> Reply:
        if next(numbers) > 5:
            await may_answer.wait()
        return await _clever(request)

    async with scripted_chat(slow) as chat:
        models = [{"model": TINY}, _prompted("clever")]
        async with _service(data_dir, database_url, chat) as client:
            id = await _start(client, models=models, concurrency=2, **SMALL)
            await until(lambda: chat.answering == 2 and len(chat.requests) == 7)
            await answered(lambda: _rows(database_url, id), lambda rows: len(rows) == 5)
        # The service has stopped in good order: what was finished is there, the rest is for the next one.
        assert len(await _rows(database_url, id)) == 5
        may_answer.set()
        async with _service(data_dir, database_url, chat) as client:
            evaluation = await ended(client, id)
            assert (evaluation["status"], evaluation["done"], evaluation["report"]["models"][1]["success"]["mean"]) == (
                "completed",
                16,
                1.0,
            )
        assert len(await _rows(database_url, id)) == 16
    assert len(chat.requests) == 16 + 2  # those that were under way were given up


async def _rows(database_url: str, id: str) -> list[Any]:
    engine = make_engine(parse_url(database_url))
    async with engine.connect() as connection:
        selected = await connection.execute(text("SELECT slot FROM trajectory WHERE evaluation_id = :id"), {"id": id})
        rows = list(selected.all())
    await engine.dispose()
    return rows


async def test_an_evaluation_is_cancelled_and_resumed(data_dir: Path, database_url: str) -> None:
    may_answer = asyncio.Event()

    async def slow(request: Json) -> Reply:
        await may_answer.wait()
        return await _clever(request)

    async with scripted_chat(slow) as chat, _service(data_dir, database_url, chat) as client:
        id = await _start(client, models=[{"model": TINY}], scenarios=2)
        other = await _start(client, models=[{"model": TINY}], scenarios=1)
        await until(lambda: chat.answering == 3)
        waiting = await _start(client, models=[{"model": TINY}], scenarios=1)
        assert (await client.get(f"/evaluations/{id}/report")).status_code == 409
        refused = await client.delete(f"/evaluations/{id}")
        assert (refused.status_code, refused.json()["allowed"]) == (409, ["cancel"])
        assert (await client.post(f"/evaluations/{waiting}/cancel")).json()["status"] == "cancelled"
        for running in (id, other):
            assert (await client.post(f"/evaluations/{running}/cancel")).status_code == 202
            assert (await ended(client, running))["status"] == "cancelled"
        await until(lambda: chat.answering == 0)
        may_answer.set()
        assert (await client.post(f"/evaluations/{id}/resume")).json()["status"] in ("queued", "running", "completed")
        assert (await ended(client, id))["status"] == "completed"
        assert (await client.post(f"/evaluations/{id}/resume")).status_code == 409
        assert (await client.post(f"/evaluations/{id}/cancel")).status_code == 409


async def test_one_that_waits_for_its_model_does_not_hold_up_another(data_dir: Path, database_url: str) -> None:
    async def slow(request: Json) -> Reply:
        if request["model"] == "broken":
            await asyncio.Event().wait()
        return await _clever(request)

    async with scripted_chat(slow) as chat, _service(data_dir, database_url, chat) as client:
        first = await _start(client, models=[_prompted("broken")], scenarios=1)
        await until(lambda: chat.answering == 1)
        second = await ended(client, await _start(client, models=[_prompted("clever")], scenarios=1))
        assert second["status"] == "completed"
        assert (await client.get(f"/evaluations/{first}")).json()["status"] == "running"


async def test_one_that_hangs_is_ended_and_can_be_resumed(data_dir: Path, database_url: str) -> None:
    may_answer, numbers = asyncio.Event(), itertools.count()

    async def hanging(request: Json) -> Reply:
        if next(numbers):
            await may_answer.wait()
        return await _clever(request)

    settings = {"phase_timeout_s": 3, "lease_s": 1.5}
    async with scripted_chat(hanging) as chat, _service(data_dir, database_url, chat, **settings) as client:
        id = await _start(client, models=[{"model": TINY}], scenarios=3)
        evaluation = await ended(client, id)
        assert (evaluation["status"], evaluation["error"]) == ("failed", "the phase evaluate made no progress for 3 s")
        may_answer.set()
        assert (await client.post(f"/evaluations/{id}/resume")).status_code == 202
        assert (await ended(client, id))["status"] == "completed"
        assert len(await _rows(database_url, id)) == 3


async def test_one_whose_service_was_killed_goes_on_in_the_next(data_dir: Path, database_url: str) -> None:
    """The next service holds the data directory, so it knows that the first one's worker is dead: it does not wait for
    the lease."""
    may_answer = asyncio.Event()

    async def slow(request: Json) -> Reply:
        await may_answer.wait()
        return await _clever(request)

    async with scripted_chat(slow) as chat:
        async with _service(data_dir, database_url, chat, lease_s=3600) as client:
            id = await _start(client, models=[{"model": TINY}], scenarios=1)
            await until(lambda: chat.answering == 1)
        killed = (data_dir / "worker").read_text()
        engine = make_engine(parse_url(database_url))
        as_sigkill_leaves_it = "status = 'running', owner = :owner, lease_until = now() + interval '1 hour'"
        async with engine.begin() as connection:
            await connection.execute(text(f"UPDATE evaluation_job SET {as_sigkill_leaves_it}"), {"owner": killed})
        await engine.dispose()
        may_answer.set()
        async with _service(data_dir, database_url, chat, lease_s=3600) as client:
            assert (await ended(client, id))["status"] == "completed"


async def test_a_blocked_service_keeps_its_evaluation(data_dir: Path, database_url: str) -> None:
    """The heartbeat is on a separate thread. The reply is made on the service's event loop."""
    was_held: list[bool] = []

    async def blocking(request: Json) -> Reply:
        was_held.append(held_past_its_lease(database_url, "evaluation_job"))
        return await _clever(request)

    async with scripted_chat(blocking) as chat, _service(data_dir, database_url, chat, lease_s=1) as client:
        id = await _start(client, models=[{"model": TINY}], scenarios=1)
        assert (await ended(client, id))["status"] == "completed"
        events = (await client.get(f"/evaluations/{id}/events")).json()["items"]
    assert was_held == [True]
    assert [event["type"] for event in events].count("evaluation.started") == 1


async def test_a_prompted_model_that_fails_at_times_has_figures(data_dir: Path, database_url: str) -> None:
    numbers = itertools.count()

    async def unsteady(request: Json) -> Reply:
        fails = request["model"] == "broken" and next(numbers)
        return Reply(status=400) if fails else await _clever({**request, "model": "clever"})

    async with scripted_chat(unsteady) as chat, _service(data_dir, database_url, chat) as client:
        models = [_prompted("clever"), _prompted("broken")]
        evaluation = await ended(client, await _start(client, models=models, scenarios=2, concurrency=1))
        assert (evaluation["status"], evaluation["error"]) == ("completed", None)
        unsteady_one = evaluation["report"]["models"][1]
        assert (unsteady_one["errors"], unsteady_one["error"]) == ({"failed": 1}, None)
        assert unsteady_one["difference"]["success"]["mean"] == -0.5


async def test_a_model_that_never_answers_has_no_figures(data_dir: Path, database_url: str) -> None:
    wrong_key = {"error": {"message": "Incorrect API key provided: sk-prompted"}}
    is_right = asyncio.Event()

    async def refusing(request: Json) -> Reply:
        if request["model"] == "broken" and not is_right.is_set():
            return Reply(status=401, body=wrong_key)
        return await _clever(request)

    async with scripted_chat(refusing) as chat, _service(data_dir, database_url, chat) as client:
        arguments = ["eval", "--model", TINY, "--prompted", "openai/clever", "--prompted", "openai/broken"]
        arguments += ["--scenarios", "2", "--url", str(client.base_url)]
        invocation = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        complaint = "openai/broken has no figures: none of its 2 rollouts got an answer: "
        reason = "HTTP 401: Incorrect API key provided: [key]"
        terminal = " ".join(invocation.stdout.split())
        assert (invocation.exit_code, complaint in terminal, reason in terminal) == (1, True, True), invocation.output

        [listed] = (await client.get("/evaluations")).json()["items"]
        path = f"/evaluations/{listed['evaluation_id']}"
        evaluation = (await client.get(path)).json()
        assert evaluation["status"] == "failed"
        assert evaluation["error"].startswith(complaint)
        assert evaluation["error"].endswith(reason)
        base, clever, broken = evaluation["report"]["models"]
        assert (base["error"], clever["success"]["mean"], clever["difference"]["success"]["mean"]) == (None, 1.0, 1.0)
        figures = ("success", "reward", "sources", "turns", "prompt_tokens", "seconds_p50", "cost_usd")
        assert [broken[name] for name in figures] == [None] * len(figures)
        assert (broken["difference"]["success"], broken["rollouts"], broken["errors"]) == (None, 2, {"failed": 2})
        assert evaluation["error"].endswith(broken["error"])
        assert reason in (await client.get(f"{path}/report")).text
        assert "no figures" in (await client.get(f"{path}/report", params={"form": "svg"})).text
        last = (await client.get(f"{path}/events")).json()["items"][-1]
        assert (last["type"], last["data"]["error"]) == ("evaluation.failed", evaluation["error"])
        assert [figure["success"] and figure["success"]["mean"] for figure in last["data"]["models"]] == [
            0.0,
            1.0,
            None,
        ]

        # With the right key only its own rollouts are made again.
        is_right.set()
        requests = len(chat.requests)
        resumed = await client.post(f"{path}/resume")
        assert resumed.json()["done"] == 0  # the verdicts compared rollouts that are gone
        again = await ended(client, listed["evaluation_id"])
        assert (again["status"], again["error"], again["done"], again["total"]) == ("completed", None, 6, 6)
        assert again["report"]["models"][2]["success"]["mean"] == 0.0
        assert [request["model"] for request in chat.requests[requests:]] == ["broken"] * 2


async def test_a_missing_key_is_a_warning_where_the_server_may_need_none(data_dir: Path, database_url: str) -> None:
    local = {"name": "local", "model": "openai/qwen", "base_url": "http://127.0.0.1:9/v1"}
    keyed_one = {**local, "name": "keyed", "key": "sk-local"}
    settings = settings_for(data_dir, database_url, max_concurrent_runs=0, models=[local, keyed_one])
    async with served(settings, ScriptedLoop()) as client:

        async def warnings(path: str, **request: Any) -> list[str]:
            posted = await client.post(path, json=request)
            assert posted.status_code == 202, posted.text
            texts: list[str] = posted.json()["warnings"]
            return texts

        correctness = {"name": "correctness", "config": {"model": "local"}}
        models = [{"model": TINY}, {"prompted": "local"}]
        [warning] = await warnings("/evaluations", models=models, judge=correctness, scenarios=1)
        assert warning.startswith("No key is configured for the model local")
        assert await warnings("/evaluations", models=[{"prompted": "keyed"}], scenarios=1) == []
        assert warning in await warnings("/learn-loop", judge=correctness)
        assert warning not in await warnings("/learn-loop", judge={**correctness, "config": {"model": "keyed"}})


@pytest.mark.parametrize(
    ("request_", "field", "said"),
    [
        ({}, [], "give models, or run_id"),
        ({"models": [{}]}, ["models", 0], "give model or prompted; or a prompt"),
        ({"models": [{"model": TINY, "prompted": "openai/a"}]}, ["models", 0], "give either model or prompted"),
        ({"models": [{"prompted": "http://x/y"}]}, ["models", 0, "prompted"], "pattern"),
        ({"models": [{"prompted": "ollama/a"}]}, ["models", 0, "prompted"], "Unknown model 'ollama/a'. No models are"),
        ({"models": [{"prompted": "openai/a"}]}, ["models", 0, "prompted"], "needs a key: set OPENAI_API_KEY"),
        ({"models": [{"model": TINY}, {"model": "no/ne@3"}]}, ["models", 1, "model"], "There is no checkpoint no/ne@3"),
        ({"models": [{"model": TINY}, {"model": TINY}]}, ["models", 1, "label"], "give it a label of its own"),
        ({"models": [{"model": TINY}], "scenarios": 1_000, "samples": 32}, [], "more than 20000"),
        ({"models": [{"model": TINY}], "environment": {"name": "chess"}}, ["environment", "name"], "chess"),
        (
            {"models": [{"model": TINY}], "environment": {"config": {"reward": "x"}}},
            ["environment", "config"],
            "reward must be one of",
        ),
        ({"models": [{"model": TINY}], "judge": {"name": "nobody"}}, ["judge", "name"], "nobody"),
        (
            {"models": [{"model": TINY}], "judge": {"name": "ruler"}},
            ["judge", "config"],
            "none is listed",
        ),
    ],
)
async def test_a_bad_request_names_its_field(
    shared: httpx.AsyncClient, request_: Json, field: list[Any], said: str
) -> None:
    refused = await shared.post("/evaluations", json=request_)
    assert refused.status_code == 422, refused.text
    [error] = refused.json()["errors"]
    assert error["loc"] == ["body", *field]
    assert said in error["msg"]
    assert (await shared.get("/evaluations")).json()["items"] == []


@pytest.fixture
async def shared(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=0), ScriptedLoop()) as client:
        yield client


async def test_the_command_compares_and_writes_the_report(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:

        async def command(*arguments: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", str(client.base_url)])

        out = data_dir / "report"
        compared = ("--model", TINY, "--prompted", "openai/clever")
        evaluated = await command("eval", *compared, "--scenarios", "3", "--output", str(out))
        assert evaluated.exit_code == 0, evaluated.output
        assert "+100 [+100, +100]" in evaluated.stdout
        document = json.loads((out / "report.json").read_text())
        id = document["evaluation_id"]
        assert "openai/clever" in (out / "report.md").read_text()
        assert (out / "report.svg").read_text().startswith("<svg")
        if HAS_FONT:
            assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
        for option in ("-o", "--out"):  # --out is the name that it had
            one = data_dir / option / "one.md"
            assert (await command("evaluations", "show", id, option, str(one))).exit_code == 0
            assert one.read_text() == (out / "report.md").read_text()
        displayed = await command("evaluations", "show", id, "--json")
        assert json.loads(displayed.stdout)["report"] == document["report"]
        assert id in (await command("evaluations", "list")).stdout
        assert "is deleted" in (await command("evaluations", "delete", id)).stdout
        refused = await command("evaluations", "cancel", id)
        assert (refused.exit_code, "There is no evaluation" in refused.stderr) == (1, True)


async def test_a_budget_pauses_it_and_a_higher_one_goes_on(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:
        request = {"models": [{"model": TINY}], "max_turns": 1, "max_completion_tokens": 16, "concurrency": 1, **SMALL}
        id = await _start(client, budget={"max_tokens": 1}, **request)
        paused = await ended(client, id)
        assert (paused["status"], paused["done"], chat.requests) == ("paused", 0, [])
        assert "The budget of 1 tokens is reached: 0 are used" in paused["wait_reason"]
        path = f"/evaluations/{id}"
        for body in (None, {"budget": {"max_tokens": 2}}):
            refused = await client.post(f"{path}/resume", json=body)
            assert (refused.status_code, "max_tokens is at least" in refused.json()["detail"]) == (409, True)
        needs = (await client.get(f"{path}/events")).json()["items"][-1]["data"]["needs"]

        await client.post(f"{path}/resume", json={"budget": {"max_tokens": int(needs) + 100}})
        some = await ended(client, id)
        assert (some["status"], 0 < len(chat.requests) < 8) == ("paused", True)
        used = sum(
            rollout["prompt_tokens"] + rollout["completion_tokens"]
            for rollout in (await client.get(f"{path}/trajectories")).json()["items"]
        )
        assert f": {used} are used" in some["wait_reason"]

        await client.post(f"{path}/resume", json={"budget": {"max_tokens": None}})
        assert (await ended(client, id))["status"] == "completed"
        assert len(chat.requests) == 8  # nothing was repeated


async def test_what_prompted_models_cost_counts(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:
        id = await _start(client, models=[_prompted("dear")], budget={"max_usd": 0.01}, **SMALL)
        paused = await ended(client, id)
        assert (paused["status"], "The budget of 0.01 usd is reached" in paused["wait_reason"]) == ("paused", True)
        cancelled = await client.post(f"/evaluations/{id}/cancel")
        assert cancelled.json()["status"] == "cancelled"


async def test_what_happens_to_it_is_logged_and_sent(data_dir: Path, database_url: str) -> None:
    async with (
        receiver() as frontend,
        scripted_chat(_clever) as chat,
        _service(data_dir, database_url, chat, allowed_private_hosts="127.0.0.0/8") as client,
    ):
        endpoint = (await client.post("/webhooks", json={"url": frontend.url})).json()
        id = await _start(client, models=[{"model": TINY, "label": "base"}], **SMALL)
        await ended(client, id)
        events = (await client.get(f"/evaluations/{id}/events")).json()["items"]
        assert [(event["seq"], event["type"]) for event in events] == [
            (1, "evaluation.created"),
            (2, "evaluation.started"),
            (3, "evaluation.completed"),
        ]
        assert (events[0]["actor"], events[1]["data"]["epoch"]) == ("local", 1)
        [model] = events[2]["data"]["models"]
        assert (model["label"], model["success"]["mean"]) == ("base", 0.0)

        await until(lambda: len(frontend.received) == 3)
        documents = list(frontend.bodies())
        assert [(body["evaluation_id"], body["seq"], body["type"]) for body in documents] == [
            (id, event["seq"], event["type"]) for event in events
        ]
        assert not any("run_id" in body for body in documents)
        listed = (await client.get(f"/webhooks/{endpoint['id']}/deliveries")).json()["items"]
        assert {(delivery["run_id"], delivery["evaluation_id"]) for delivery in listed} == {("", id)}
        again = await client.post(f"/webhooks/deliveries/{listed[0]['id']}/redeliver")
        assert again.status_code == 202, again.text
        await until(lambda: len(frontend.received) == 4)
        assert (await client.delete(f"/evaluations/{id}")).status_code == 200


async def test_details_of_old_ones_are_deleted_but_not_their_figures(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat) as client:
        id = await _start(client, models=[{"model": TINY}], **SMALL)
        before = await ended(client, id)
        engine = make_engine(parse_url(database_url))
        settings = settings_for(data_dir, database_url, keep_trajectories_days=7, keep_events_days=7)
        try:
            await prune(make_database(engine), settings)
            assert len((await client.get(f"/evaluations/{id}/trajectories")).json()["items"]) == 8
            async with engine.begin() as connection:
                await connection.execute(text("UPDATE evaluation_job SET finished_at = now() - interval '8 days'"))
            await prune(make_database(engine), settings)
        finally:
            await engine.dispose()
        for part in ("trajectories", "events"):
            assert (await client.get(f"/evaluations/{id}/{part}")).json()["items"] == []
        after = (await client.get(f"/evaluations/{id}")).json()
        assert after.pop("pruned").keys() == {"trajectories", "events"}
        assert after | {"pruned": {}, "finished_at": None} == before | {"finished_at": None}


async def test_it_is_published_to_weave_after_it_has_completed(data_dir: Path, database_url: str) -> None:
    with weave_server() as weave:
        settings = {"wandb_base_url": weave.url, "weave_project": "mail", "wandb_api_key": weave.key}
        async with (
            scripted_chat(_clever) as chat,
            _service(data_dir, database_url, chat, **settings) as client,
        ):
            models = [{"model": TINY, "label": "base"}, _prompted("clever")]
            id = await _start(client, models=models, scenarios=2)
            evaluation = await ended(client, id)
            assert (evaluation["status"], evaluation["weave"]["state"]) == ("completed", "due")
            published = await _published(client, id)
            assert published["state"] == "published", published["error"]
            assert all(url.startswith(weave.url) for url in published["urls"].values())
    summaries = weave.summaries()
    assert {label: summary["success"]["mean"] for label, summary in summaries.items()} == {
        "base": 0.0,
        "openai/clever": 1.0,
    }
    assert weave.count("Model.predict") == 4
    assert weave.count("success") == 4
    bodies = "\n".join(body for path, body in weave.received if "otel" not in path)
    assert "sk-prompted" not in bodies
    assert chat.requests[0]["messages"][0]["content"] not in bodies  # figures and answers, not conversations


async def test_weave_that_refuses_fails_nothing(data_dir: Path, database_url: str) -> None:
    with weave_server() as weave:
        settings = {"wandb_base_url": weave.url, "weave_project": "mail", "wandb_api_key": "k" * 40}
        async with scripted_chat(_clever) as chat, _service(data_dir, database_url, chat, **settings) as client:
            id = await _start(client, models=[{"model": TINY}], scenarios=1)
            assert (await ended(client, id))["status"] == "completed"

            async def ask() -> Json:
                return (await client.get(f"/evaluations/{id}")).raise_for_status().json()["weave"]

            refused = await answered(ask, lambda publication: publication["error"] is not None)
            assert (refused["state"], "401" in refused["error"]) == ("due", True)


async def _published(client: httpx.AsyncClient, id: str) -> Json:
    async def ask() -> Json:
        return (await client.get(f"/evaluations/{id}")).raise_for_status().json()["weave"]

    return await answered(
        ask, lambda publication: publication["state"] == "published" or publication["error"], timeout_s=120
    )
