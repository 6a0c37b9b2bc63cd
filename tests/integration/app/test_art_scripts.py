"""Scripts that know ART and nothing of ours, in a process of their own, against our engine and against the service."""

from pathlib import Path

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_judge import KEY, scripted_judge
from tests.integration.app.art_process import art_process
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ENGINE_KEY, ModelStage, engine_http
from tests.integration.engine.training_client import create_model

TAUGHT = ("art-e", "langgraph", "rebuilt")
"""The flows whose models have to call a tool."""


@pytest.mark.long
async def test_unmodified_art_scripts_train_to_the_end(stage: ModelStage, tmp_path: Path) -> None:
    key = await stage.key()
    async with httpx.AsyncClient(base_url=stage.base_url, headers=bearer(key), timeout=60, trust_env=False) as http:
        for name in TAUGHT:
            await create_model(http, name, project="mail", base_model=f"{CALLER}@1")
    training = {"TRAINING_URL": stage.base_url, "TRAINING_KEY": key, "TRAINING_PROJECT": "mail"}
    engine = {"ENGINE_URL": stage.engine.base_url, "ENGINE_KEY": ENGINE_KEY}
    async with scripted_judge(noise=0.3) as judge:
        urls = training | engine | {"JUDGE_URL": judge.url, "JUDGE_KEY": KEY}
        result, flows = await art_process(tmp_path, urls, "art_script.py", "art_flows.py")
    assert len(judge.requests) == 4  # one a group
    async with engine_http(stage.engine) as http:
        await _check_script(result, http, tmp_path)
    _check_flows(flows)
    other = bearer(await stage.key("market"))
    models = (await stage.service.client.get("/v1/preview/models", headers=other)).json()["data"]
    assert {model["project"] for model in models} <= {"market"}


async def _check_script(result: Json, http: httpx.AsyncClient, directory: Path) -> None:
    assert [training["step"] for training in result["trained"]] == [1, 2]
    for training in result["trained"]:
        assert len(training["rewards"]) == 8
        assert len(set(training["rewards"])) > 2  # the judge's, not the script's
        assert training["metrics"]["data/step_num_trajectories"] == 8
        assert training["metrics"]["loss/grad_norm"] > 0
    assert result["step"] == 2
    assert result["answer"][-1]["role"] == "assistant"

    [model] = [listed for listed in (await http.get("/preview/models")).json()["data"] if listed["project"] == "script"]
    steps = [
        checkpoint["step"]
        for checkpoint in (await http.get(f"/preview/models/{model['id']}/checkpoints")).json()["data"]
    ]
    best = max(result["trained"], key=lambda training: sum(training["rewards"]))["step"]
    assert steps == sorted({best, 2})
    # ART keeps trajectories and figures on its own side.
    script_folder = directory / "script"
    assert len(list(script_folder.rglob("trajectories/train/*.parquet"))) == 2
    assert next(script_folder.rglob("history.jsonl")).read_text().count("train/reward") >= 2


def _check_flows(flows: Json) -> None:
    """Checks the flows of ART's published examples."""
    for name, flow in flows.items():
        assert (flow["before"], flow["after"]) == (0, 1), name
        metrics = flow["metrics"]
        assert metrics["data/step_num_groups_trainable"] == 2, name
        assert metrics["num_trajectories_trainable"] == 4, name  # of three, the middle reward is the mean
        assert metrics["data/step_trainer_tokens"] == flow["sampled"], name
        assert metrics["loss/grad_norm"] > 0, name
