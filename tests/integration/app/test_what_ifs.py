"""What-ifs over HTTP, on the real engine: recorded rollouts are continued from their turns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.real_service import real_service
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with

RUN = {
    "iterations": 2,
    "groups_per_iteration": 3,
    "rollouts_per_group": 2,
    "evaluation": {"every": 1, "scenarios": 4, "test_scenarios": 0, "samples": 1},
    "seed": 3,
}


@asynccontextmanager
async def _service(data_dir: Path, database_url: str, engine: EngineProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        real_service(data_dir, database_url, engine) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with EngineProcess(tmp_path_factory.mktemp("engine")) as process:
        yield process


async def _run(client: httpx.AsyncClient, **more: Any) -> str:
    accepted = (await client.post("/learn-loop", json=RUN | more)).raise_for_status().json()
    run = await run_with(client, accepted["run_id"], "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return str(run["run_id"])


async def _rollouts(client: httpx.AsyncClient, run_id: str, turns: int = 1, **query: Any) -> list[Any]:
    """Trajectories of at least that many turns."""
    response = await client.get(f"/runs/{run_id}/trajectories", params={"limit": 200} | query)
    return [rollout for rollout in response.raise_for_status().json()["items"] if rollout["turns"] >= turns]


async def _what_if(client: httpx.AsyncClient, trajectory_id: str, **request: Any) -> Any:
    posted = await client.post(f"/trajectories/{trajectory_id}/what-if", json=request)
    assert posted.status_code == 202, posted.text
    evaluation = await ended(client, posted.json()["evaluation_id"])
    assert (evaluation["status"], evaluation["error"]) == ("completed", None)
    return evaluation


async def _continuations(client: httpx.AsyncClient, what_if: Any) -> list[Any]:
    listed = await client.get(f"/evaluations/{what_if['evaluation_id']}/trajectories", params={"limit": 200})
    return list(listed.raise_for_status().json()["items"])


async def _messages(client: httpx.AsyncClient, id: str) -> list[Any]:
    return list((await client.get(f"/trajectories/{id}")).raise_for_status().json()["messages"])


async def _tokens(client: httpx.AsyncClient, id: str) -> list[Any]:
    return list((await client.get(f"/trajectories/{id}/tokens")).raise_for_status().json()["turns"])


@pytest.mark.long
@pytest.mark.parametrize("environment", ["email_search", "sales_email"])
async def test_with_its_own_seed_every_kind_of_rollout_is_made_again(
    environment: str, data_dir: Path, database_url: str, engine: EngineProcess
) -> None:
    async with _service(data_dir, database_url, engine) as client:
        run_id = await _run(client, environment={"name": environment})
        kinds = [{"kind": "train", "iteration": 1}, {"kind": "train", "iteration": 2}]
        kinds += [{"kind": "evaluation", "mode": mode} for mode in ("sampled", "greedy")]
        for kind in kinds:
            original = (await _rollouts(client, run_id, turns=2, **kind))[-1]
            turn = original["turns"]
            evaluation = await _what_if(client, original["id"], turn=turn, seed="own")
            report = evaluation["report"]["what_if"]
            assert (report["prefix"], report["edited"]) == ("exact", False)
            [again] = await _continuations(client, evaluation)
            assert (again["kind"], again["run_id"]) == ("what_if", None)
            same = ("outcome", "score", "reward", "success", "turns", "step", "mode", "scenario_id")
            assert {name: again[name] for name in same} == {name: original[name] for name in same}
            assert await _messages(client, again["id"]) == await _messages(client, original["id"])
            assert await _tokens(client, again["id"]) == await _tokens(client, original["id"])
            assert again["completion_tokens"] < original["completion_tokens"]  # only what was sampled anew is paid for
            [continued] = report["continuations"]
            assert (continued["turn"], continued["count"]) == (turn, 1)
            assert [next_step["is_original"] for next_step in continued["next"]] == [True]


async def test_a_tool_result_is_edited_and_two_checkpoints_go_on(
    data_dir: Path, database_url: str, engine: EngineProcess
) -> None:
    async with _service(data_dir, database_url, engine) as client:
        run_id = await _run(client)
        original = (await _rollouts(client, run_id, turns=2, kind="train"))[0]
        messages = await _messages(client, original["id"])
        call = messages[2]["tool_calls"][0]["id"]
        models = [{"model": "learnloop/tiny", "label": "base"}, {"model": f"{run_id}@2", "label": "trained"}]
        edit = {"tool_result": call, "content": "No emails."}
        evaluation = await _what_if(client, original["id"], turn=2, samples=3, edit=edit, models=models)
        assert (evaluation["total"], evaluation["done"]) == (6, 6)
        rows = await _continuations(client, evaluation)
        for row in rows:
            conversation = await _messages(client, row["id"])
            assert conversation[:3] == messages[:3]
            assert conversation[3] == {**messages[3], "content": "No emails."}
        report = evaluation["report"]
        assert [model["label"] for model in report["models"]] == ["base", "trained"]
        assert report["what_if"]["edited"]
        assert [
            (continuation["label"], continuation["count"]) for continuation in report["what_if"]["continuations"]
        ] == [
            ("base", 3),
            ("trained", 3),
        ]
        assert sum(next_step["count"] for next_step in report["what_if"]["continuations"][0]["next"]) == 3
        listed = (await client.get(f"/trajectories/{original['id']}/what-ifs")).json()["items"]
        assert [(summary["evaluation_id"], summary["edited"], summary["turns"]) for summary in listed] == [
            (evaluation["evaluation_id"], True, [2])
        ]
        assert (await client.get("/evaluations")).json()["items"] == []
        values = (await client.get(f"/trajectories/{original['id']}/turn-values")).json()
        assert values["values"] == []  # what was edited says nothing of the rollout's own turns

        # a continuation is continued, from its text and with its edit
        longest = max(rows, key=lambda rollout: rollout["turns"])
        again = await _what_if(client, longest["id"], turn=longest["turns"], samples=1, edit={"append": "Be quick."})
        assert again["report"]["what_if"]["prefix"] == "rendered"
        [row] = await _continuations(client, again)
        conversation = await _messages(client, row["id"])
        assert conversation[:4] == [*messages[:3], {**messages[3], "content": "No emails."}]
        added = [
            index for index, message in enumerate(conversation) if message == {"role": "user", "content": "Be quick."}
        ]
        assert len(added) == 1
        more = await _what_if(client, row["id"], turn=row["turns"], samples=1)
        [row] = await _continuations(client, more)
        assert (await _messages(client, row["id"]))[: added[0] + 1] == conversation[: added[0] + 1]
        assert (await client.delete(f"/evaluations/{evaluation['evaluation_id']}")).status_code == 200
        assert (await client.get(f"/evaluations/{again['evaluation_id']}")).status_code == 404
        assert (await client.get(f"/evaluations/{more['evaluation_id']}")).status_code == 404
        assert (await client.get(f"/trajectories/{rows[0]['id']}")).status_code == 404


async def test_a_search_tells_the_values_of_turns(data_dir: Path, database_url: str, engine: EngineProcess) -> None:
    async with _service(data_dir, database_url, engine) as client:
        run_id = await _run(client)
        original = max(await _rollouts(client, run_id), key=lambda rollout: rollout["turns"])
        path = f"/trajectories/{original['id']}/turn-values"
        assert "nothing was continued" in (await client.get(path)).json()["text"]
        await _what_if(client, original["id"], search="all", samples=2)
        values = (await client.get(path)).json()
        assert [(turn_value["turn"], turn_value["count"]) for turn_value in values["values"]] == [
            (turn, 2) for turn in range(1, original["turns"] + 1)
        ]
        assert [credit["turn"] for credit in values["credits"]] == list(range(1, original["turns"] + 1))
        evaluation = await _what_if(client, original["id"], search="bisect", samples=3)
        assert evaluation["done"] <= evaluation["total"]
        more = (await client.get(path)).json()["values"]
        assert more[0]["count"] == 5  # of both


async def test_what_cannot_be_continued_is_refused_with_its_reason(
    data_dir: Path, database_url: str, engine: EngineProcess
) -> None:
    async with _service(data_dir, database_url, engine) as client:
        run_id = await _run(client)
        original = (await _rollouts(client, run_id, turns=2, kind="train"))[0]

        async def refused(**request: Any) -> tuple[int, Any]:
            reply = await client.post(f"/trajectories/{original['id']}/what-if", json=request)
            assert reply.headers["content-type"] == "application/problem+json"
            return reply.status_code, reply.json()

        status, problem = await refused(turn=original["turns"] + 1)
        assert (status, problem["errors"][0]["loc"]) == (422, ["body", "turn"])
        assert problem["detail"] == f"the rollout has no turn {original['turns'] + 1}; it has {original['turns']}."
        assert (await refused())[0] == (await refused(turn=1, search="all"))[0] == 422
        assert (await refused(turn=1, seed="own", samples=2))[0] == 422
        status, problem = await refused(turn=2, edit={"tool_result": "nothing", "content": "x"})
        assert problem["errors"][0]["loc"] == ["body", "edit", "tool_result"]
        status, problem = await refused(turn=1, edit={"message": 3, "content": "x"})
        assert (status, problem["errors"][0]["loc"]) == (422, ["body", "edit"])
        assert (await client.post("/trajectories/nothing/what-if", json={"turn": 1})).status_code == 404
        assert (await client.get(f"/trajectories/{original['id']}/what-ifs")).json()["items"] == []
