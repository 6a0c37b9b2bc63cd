"""A worker on a Ray cluster of one node: it answers as an engine alone does, and is started again when it is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess
from tests.fakes.ray_cluster import ENVIRONMENT, RayCluster
from tests.integration.engine.training_client import create_model, sample, sampled_group, train

_REQUEST_S = 180
"""The worker has to be started first, which imports what it needs."""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with RayCluster(head_cpus=1) as cluster:
        yield cluster


async def test_a_worker_that_is_killed_is_placed_again(cluster: RayCluster, base: Path, tmp_path: Path) -> None:
    flags = ("--base-model", f"tiny={base}", "--ray", cluster.address)
    with EngineProcess(
        tmp_path, *flags, environment=ENVIRONMENT, command=("learnloop_service.training.engine",)
    ) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=_REQUEST_S) as http:

            async def worker() -> dict[str, Any]:
                [worker_health] = (await http.get(engine.base_url.removesuffix("/v1") + "/health")).json()["workers"]
                return dict(worker_health)

            model_id = (await create_model(http, "agent"))["id"]
            group = await sampled_group(http, "test/agent")
            assert (await train(http, model_id, [group], expected_step=0))["step"] == 1
            reply = (await sample(http, "test/agent@1", seed=1))["logprobs"]
            before = await worker()
            assert before["roles"] == ["samples", "trains"]
            os.kill(int(before["place"].rpartition(" ")[2]), signal.SIGKILL)
            await answered(worker, lambda now: now["up"] and now["place"] != before["place"])
            assert (await sample(http, "test/agent@1", seed=1))["logprobs"] == reply
            assert (await train(http, model_id, [group], expected_step=1))["step"] == 2
