"""Demonstrations that are uploaded, and runs that learn from them first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from learnloop_service.app.reports.figures import figures
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import ModelSpec, Overlong, Policy
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.imitating_runs import (
    CALL,
    CALLS,
    NOT_EVALUATED,
    RESULT,
    SAYS,
    USER,
    ImitatingBackend,
    ImitatingPolicy,
    demonstrations,
    lines,
    service,
    store,
)
from tests.integration.app.keyed import keyed
from tests.integration.app.served import run_with, served, settings_for


async def test_a_run_that_learns_from_demonstrations_only(data_dir: Path, database_url: str) -> None:
    backend = ImitatingBackend()
    async with service(data_dir, database_url, backend) as client:
        first = (await store(client, demonstrations(3))).json()
        second = (await store(client, demonstrations(10))).json()
        assert [(version["version"], version["count"]) for version in (first, second)] == [(1, 3), (2, 10)]
        assert (await store(client, demonstrations(10))).json() == second, "the same ones are no new version"
        listed = (await client.get("/demonstrations", params={"name": "mine"})).json()["items"]
        assert listed == [second, first]
        stored = (await client.get(second["links"]["self"])).json()["demonstrations"]
        assert stored[9]["messages"][-1]["content"] == "done 9"
        assert stored[0]["messages"][1] == {"role": "assistant", "tool_calls": [CALL]}

        learned_before = await _learned(client)
        warm_start = {"demonstrations": {"dataset": "mine"}, "epochs": 2, "batch_size": 4}
        request = {"warm_start": warm_start, "iterations": 0, "evaluation": NOT_EVALUATED, "model": {"name": "warm"}}
        started = (await client.post("/learn-loop", json=request)).raise_for_status().json()
        run = await run_with(client, started["run_id"], "completed", "failed")
        assert run["status"] == "completed", run["error"]
        assert run["request"]["warm_start"]["demonstrations"] == {
            "sha256": second["sha256"], "name": "mine", "version": 2, "count": 10,
        }  # fmt: skip
        assert (run["progress"]["iterations_done"], run["progress"]["iterations_total"]) == (2, 2)
        assert run["best_checkpoint"]["step"] == 2
        expected = {
            "demonstrations": 9,
            "left_out": None,
            "tokens": 40,
            "loss": 2.0,
            "held_out_loss_before": 2.0,
            "held_out_loss": 1.0,
        }
        supervised = [iteration["supervised"] for iteration in run["iterations"]]
        assert supervised[:2] == [None, expected | {"seconds": 0.5}]
        assert supervised[2]["held_out_loss"] == pytest.approx(2 / 3)
        whole = (await client.get(run["links"]["iterations"])).json()["items"]
        assert [iteration["supervised"] for iteration in whole] == supervised
        assert all(iteration["no_signal"] is None for iteration in whole)
        events = (await client.get(run["links"]["events"], params={"limit": 100})).json()["items"]
        completed = [event["data"] for event in events if event["type"] == "iteration.completed"]
        assert [payload.get("supervised") for payload in completed] == supervised
        phases = [
            (event["iteration"], event["data"]["phase"]) for event in events if event["type"] == "phase.completed"
        ]
        assert phases == [(1, "train"), (2, "train")]
        assert await _learned(client) - learned_before == 18
        verified = (await client.get(f"/runs/{run['run_id']}/verify")).json()
        assert (verified["ok"], verified["iterations"]) == (True, 3)
        await _says_that_they_were_learned(client, run)

        [policy] = backend.policies.values()
        assert isinstance(policy, ImitatingPolicy)
        sizes = [
            (len(training_request.demonstrations), len(training_request.held_out), training_request.expected_step)
            for training_request in policy.shown
        ]
        assert sizes == [(9, 1, 0), (9, 1, 1)]

        forked = await client.post(f"/runs/{run['run_id']}/fork", json={"iterations": 1})
        fork = (await client.get(forked.raise_for_status().json()["links"]["self"])).json()
        assert fork["request"]["warm_start"] is None, "its checkpoint has seen them"


async def _learned(client: httpx.AsyncClient) -> float:
    """Return the number of demonstrations that this process has learned in all of its runs."""
    pages = text_string_to_metric_families((await client.get("/metrics")).text)
    return sum(
        sample.value for page in pages for sample in page.samples if sample.name == "learnloop_demonstrations_total"
    )


class CountingPolicy(ImitatingPolicy):
    """Has room for demonstrations that do not say `done 1`, `done 2` or `done 3`."""

    async def overlong(self, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        return _overlong(demonstrations)


class CountingBackend(ImitatingBackend):
    """Whose policies count."""

    async def register(self, model: ModelSpec) -> Policy:
        return self.policies.setdefault(model, CountingPolicy(model))

    async def overlong(self, model: str, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        return _overlong(demonstrations)


def _overlong(demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
    contents = [demonstration["messages"][-1]["content"] for demonstration in demonstrations]
    long = {index: 5_000 + index for index, text in enumerate(contents) if text in ("done 1", "done 2", "done 3")}
    return Overlong(len(contents), 2_048, long)


async def test_overlong_demonstrations_are_named_and_left_out(data_dir: Path, database_url: str) -> None:
    backend = CountingBackend()
    async with service(data_dir, database_url, backend) as client:
        await store(client, demonstrations(6))
        warm_start = {"demonstrations": {"dataset": "mine"}, "epochs": 1, "batch_size": 4, "held_out": 0.0}
        request = {"warm_start": warm_start, "iterations": 0, "evaluation": NOT_EVALUATED, "model": {"name": "warm"}}
        started = (await client.post("/learn-loop", json=request)).raise_for_status().json()
        sentence = (
            "3 of 6 demonstrations are longer than the model's context of 2,048 tokens, and are left out: "
            "demonstration 2 (5,001 tokens), demonstration 3 (5,002 tokens), demonstration 4 (5,003 tokens)."
        )
        assert sentence in started["warnings"]
        run = await run_with(client, started["run_id"], "completed", "failed")
        assert run["status"] == "completed", run["error"]
        assert sentence in run["warnings"]
        figures = run["iterations"][1]["supervised"]
        assert (figures["demonstrations"], figures["left_out"]) == (3, 3)
        events = (await client.get(run["links"]["events"], params={"limit": 100})).json()["items"]
        named = [event["data"].get("left_out") for event in events if event["type"] == "iteration.completed"]
        assert named[1] == [f"demonstration {number} ({4_999 + number:,} tokens)" for number in (2, 3, 4)]
        [policy] = backend.policies.values()
        assert isinstance(policy, CountingPolicy)
        assert sorted(demonstration["id"] for demonstration in policy.shown[0].demonstrations) == [
            "demonstration 1", "demonstration 5", "demonstration 6",
        ]  # fmt: skip

        await store(client, lines({"messages": [USER, {**SAYS, "content": "done 1"}]}), name="long")
        warm_start["demonstrations"] = {"dataset": "long"}
        refused = await client.post("/learn-loop", json={**request, "model": {"name": "other"}})
        assert refused.status_code == 422
        [fault] = refused.json()["errors"]
        assert "None of the demonstrations can be learnt from. 1 of 1 demonstrations are longer" in str(fault)
        assert "warm_start" in str(fault)


async def test_what_a_queued_run_will_learn_from_is_not_deleted(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, ImitatingBackend(), max_concurrent_runs=0) as client:
        stored = (await store(client, demonstrations(3))).json()
        request = {"warm_start": {"demonstrations": {"dataset": "mine@1"}}, "evaluation": NOT_EVALUATED}
        run_id = (await client.post("/learn-loop", json=request)).raise_for_status().json()["run_id"]
        refused = await client.delete(stored["links"]["self"])
        assert refused.status_code == 409
        assert refused.json()["used_by"]["runs"] == [run_id]
        await client.post(f"/runs/{run_id}/cancel")
        deleted = await client.delete(stored["links"]["self"])
        assert deleted.raise_for_status().json()["names"] == ["mine@1"]
        assert (await client.get(stored["links"]["self"])).status_code == 404


BAD_LINES = [
    (b"", "the file is empty"),
    (b'{"messages": [', "line 1: it is not JSON"),
    (lines({"messages": [USER, SAYS]}) + b"\n[]", "line 3: expected a JSON object"),
    (lines({"messages": [USER]}), "line 1: there is no assistant message to learn"),
    (lines({"messages": [USER, {**SAYS, "weight": 0}]}), "line 1: there is no assistant message to learn"),
    (lines({"messages": [USER, {**SAYS, "weight": 2}]}), "line 1: messages.1.weight: "),
    (
        lines({"messages": [USER, {"role": "bot", "content": "hi"}]}),
        "line 1: messages.1: expected an object with",
    ),
    (lines({"messages": [USER, {"role": "assistant"}]}), "line 1: messages.1: the message has neither"),
    (lines({"messages": [USER, {**SAYS, "contents": "x"}]}), "line 1: messages.1.contents: Unknown field"),
    (lines({"messages": [{**USER, "content": [{"type": "image_url"}]}, SAYS]}), "line 1: messages.0.content.0.type: "),
    (lines({"messages": [USER, CALLS]}), "line 1: messages.1.tool_calls: 'search' is not one of the tools"),
    (lines({"messages": [USER, RESULT, SAYS]}), "line 1: messages.1.tool_call_id: no call before has the id 'call_1'"),
    (
        lines({"messages": [{**CALLS, "tool_calls": [{**CALL, "function": {"name": "search", "arguments": "[]"}}]}]}),
        "line 1: messages.0.tool_calls.0.function.arguments: expected the text of a JSON object",
    ),
    (lines({"messages": [USER, {**SAYS, "content": "\0"}]}), "line 1: texts may not hold U+0000"),
    (b'{"messages": [{"role": "assistant", "content": "\xff"}]}', "line 1: it is not UTF-8"),
    (lines({"messages": []}, {"messages": [USER]}), "line 2: there is no assistant message"),
]


async def test_lines_that_are_no_demonstrations_are_named(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for body, message in BAD_LINES:
            refused = await store(client, body)
            assert refused.status_code == 422, message
            assert message in refused.json()["detail"], refused.json()
        assert (await client.get("/demonstrations")).json()["items"] == []


TASKS = [{"task": {"input": word}} for word in ("one", "two", "three")]
BAD_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"iterations": 0}, "iterations: must be at least 1 in a run without a warm_start"),
    ({"warm_start": {}}, "warm_start.demonstrations: Field required"),
    ({"warm_start": {"demonstrations": {"dataset": "none"}}}, "there are no demonstrations 'none'"),
    ({"warm_start": {"demonstrations": {"dataset": "mine@2"}}}, "there are no demonstrations 'mine@2'"),
    ({"warm_start": {"demonstrations": {"oracle": 0}}}, "warm_start.demonstrations.oracle: "),
    (
        {"warm_start": {"demonstrations": {"oracle": 9_000}, "epochs": 3, "demonstrations_per_iteration": 1}},
        "make 24,300 iterations, and 10,000 are possible",
    ),
    (
        {
            "warm_start": {"demonstrations": {"oracle": 2}},
            "environment": {
                "name": "agent",
                "config": {"scenarios": TASKS, "runner": {"pull": {}}},
            },
        },
        "the environment agent has no oracle",
    ),
    (
        {"warm_start": {"demonstrations": {"oracle": 2}}, "backend": "serverless", "model": {"base_model": "Qwen/Q"}},
        "The backend serverless does not train on demonstrations",
    ),
]


async def test_runs_that_could_not_learn_from_them_are_refused(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-key")
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop()) as client:
        (await store(client, demonstrations(2))).raise_for_status()
        for request, message in BAD_RUNS:
            refused = await client.post("/learn-loop", json=request)
            assert refused.status_code == 422, message
            assert message in refused.json()["detail"], refused.json()
        assert (await client.get("/runs")).json()["items"] == []


async def test_demonstrations_of_one_project_are_not_found_by_another(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as stage:
        mail, sales = [await stage.headers(project) for project in ("mail", "sales")]
        (await store(stage.client, demonstrations(2), headers=mail)).raise_for_status()
        request = {"warm_start": {"demonstrations": {"dataset": "mine"}}}
        refused = await stage.client.post("/learn-loop", json=request, headers=sales)
        assert refused.status_code == 422
        assert "there are no demonstrations 'mine'" in refused.json()["detail"]
        assert (await stage.client.get("/demonstrations", headers=sales)).json()["items"] == []
        accepted = await stage.client.post("/learn-loop", json=request, headers=mail)
        assert accepted.status_code == 202, accepted.text


async def _says_that_they_were_learned(client: httpx.AsyncClient, run: Any) -> None:
    """The run, the list, the last event and the report have the same verdict."""
    verdict = run["verdict"]
    assert (verdict["state"], verdict["points"]) == ("demonstrations_learned", None)
    assert verdict["text"] == "Demonstrations learned: held-out loss 2 \N{RIGHTWARDS ARROW} 0.67."
    assert verdict["losses"] == {"first": 2.0, "latest": pytest.approx(2 / 3), "held_out": True}
    listed = (await client.get("/runs")).json()["items"]
    assert [row["verdict"] for row in listed] == [verdict]
    events = (await client.get(run["links"]["events"], params={"limit": 100})).json()["items"]
    assert events[-1]["data"]["verdict"]["text"] == verdict["text"]
    report = (await client.get(f"/runs/{run['run_id']}/report", params={"form": "json"})).raise_for_status().json()
    once = {name: value for name, value in verdict.items() if name not in ("sentence", "details")}
    assert {name: report["verdict"][name] for name in once} == once
    assert all(figure.agrees for figure in figures(report) if figure.name.startswith("verdict"))
    page = (await client.get(f"/runs/{run['run_id']}/report", params={"form": "html"})).raise_for_status().text
    assert ">Demonstrations learned</h1>" in page
    assert "Too early" not in page
