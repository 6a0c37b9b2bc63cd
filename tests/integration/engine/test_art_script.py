"""A script that knows ART and nothing of ours, as a process of its own, against our engine."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.engine_process import ROOT, EngineProcess
from tests.fakes.scripted_judge import KEY, scripted_judge

SCRIPT = Path(__file__).with_name("art_script.py")


async def _run(engine: EngineProcess, judge_url: str, directory: Path) -> Any:
    """What the script says at its end. It inherits no keys: nothing is to go to anybody else's service."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment |= {
        "TRAINING_URL": engine.base_url,
        "TRAINING_KEY": "none",
        "JUDGE_URL": judge_url,
        "JUDGE_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "WANDB_MODE": "disabled",
    }
    script = await asyncio.create_subprocess_exec(
        *(sys.executable, SCRIPT, directory),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complained = await script.communicate()
    finally:
        if script.returncode is None:
            script.kill()
            await script.wait()
    assert script.returncode == 0, complained.decode()
    last = next(line for line in said.decode().splitlines() if line.startswith("RESULT "))
    return json.loads(last.removeprefix("RESULT "))


async def test_an_unmodified_art_script_trains_to_the_end(
    engine: EngineProcess, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with scripted_judge(noise=0.3) as judge:
        result = await _run(engine, judge.url, tmp_path)
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
