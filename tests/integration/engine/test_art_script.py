"""Scripts that know ART and nothing of ours, as processes of their own, against our engine."""

from pathlib import Path

import httpx

from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_judge import KEY, scripted_judge
from tests.integration.engine.art_process import art_process
from tests.integration.engine.training_client import create_model

TAUGHT = ("art-e", "langgraph", "rebuilt")
"""The flows whose models have to call a tool."""


async def test_an_unmodified_art_script_trains_to_the_end(
    engine: EngineProcess, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with scripted_judge(noise=0.3) as judge:
        urls = {"TRAINING_URL": engine.base_url, "TRAINING_KEY": "none", "JUDGE_URL": judge.url, "JUDGE_KEY": KEY}
        result = await art_process("art_script.py", tmp_path, urls)
    assert [each["step"] for each in result["trained"]] == [1, 2]
    for each in result["trained"]:
        assert len(each["rewards"]) == 8
        assert len(set(each["rewards"])) > 2  # the judge's, not the script's
        assert each["metrics"]["data/step_num_trajectories"] == 8
        assert each["metrics"]["loss/grad_norm"] > 0
    assert result["step"] == 2
    assert result["answer"][-1]["role"] == "assistant"
    assert len(judge.requests) == 4  # one a group

    [model] = [each for each in (await http.get("/preview/models")).json()["data"] if each["project"] == "script"]
    kept = [each["step"] for each in (await http.get(f"/preview/models/{model['id']}/checkpoints")).json()["data"]]
    best = max(result["trained"], key=lambda each: sum(each["rewards"]))["step"]
    assert kept == sorted({best, 2})
    # ART keeps trajectories and figures on its own side.
    assert len(list(tmp_path.rglob("trajectories/train/*.parquet"))) == 2
    assert next(tmp_path.rglob("history.jsonl")).read_text().count("train/reward") >= 2


async def test_the_flows_of_arts_examples_train(
    engine: EngineProcess, http: httpx.AsyncClient, caller: str, tmp_path: Path
) -> None:
    for name in TAUGHT:
        await create_model(http, name, project="flows", base_model=f"test/{caller}@1")
    where = {"TRAINING_URL": engine.base_url, "TRAINING_KEY": "none", "TRAINING_PROJECT": "flows"}
    flows = await art_process("art_flows.py", tmp_path, where)
    for name, flow in flows.items():
        assert (flow["before"], flow["after"]) == (0, 1), name
        metrics = flow["metrics"]
        assert metrics["data/step_num_groups_trainable"] == 2, name
        assert metrics["num_trajectories_trainable"] == 4, name  # of three, the middle reward is the mean
        assert metrics["data/step_trainer_tokens"] == flow["sampled"], name
        assert metrics["loss/grad_norm"] > 0, name
