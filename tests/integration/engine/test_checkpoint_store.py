"""Engines on two machines over one store: one continues with what the other trained."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.engine_process import EngineProcess
from tests.fakes.s3_server import S3Server, s3_server
from tests.integration.engine.training_client import create_model, sample, sampled_group, train


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


async def test_an_engine_on_another_machine_continues_where_one_died(s3: S3Server, base: Path, tmp_path: Path) -> None:
    arguments = ("--base-model", f"tiny={base}", "--checkpoint-store", f"s3://{s3.bucket}/engines")
    with (
        EngineProcess(tmp_path / "one", *arguments, environment=s3.environment) as one,
        EngineProcess(tmp_path / "two", *arguments, environment=s3.environment) as two,
    ):
        async with httpx.AsyncClient(base_url=one.base_url, timeout=60) as http:
            model_id = (await create_model(http, "agent"))["id"]
            group = await sampled_group(http, "test/agent")
            assert (await train(http, model_id, [group], expected_step=0))["step"] == 1
            reply = (await sample(http, "test/agent@1", seed=1))["logprobs"]
        one.stop(signal.SIGKILL)
        shutil.rmtree(tmp_path / "one" / "models")
        async with httpx.AsyncClient(base_url=two.base_url, timeout=60) as http:
            assert (await http.get(f"/preview/models/{model_id}")).json()["step"] == 1
            assert (await create_model(http, "agent", return_existing=True))["id"] == model_id
            assert (await sample(http, "test/agent", seed=1))["logprobs"] == reply
            assert (await train(http, model_id, [group], expected_step=1))["step"] == 2
            stale = {"model_id": model_id, "trajectory_groups": [group], "expected_step": 1}
            refused = await http.post("/preview/training-jobs", json=stale)
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "step_conflict"
    for secret in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert s3.environment[secret] not in one.log() + two.log()


def test_a_store_that_cannot_be_used_is_said_at_the_start(base: Path, tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path, "--base-model", f"tiny={base}", "--checkpoint-store", "file:///nowhere")
    with pytest.raises(AssertionError, match="there is no directory /nowhere to keep checkpoints in"), engine:
        pass
