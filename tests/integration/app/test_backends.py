"""Backends by request: which there are, what is said of those that cannot be used, and a run on the hosted one."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.backends import Backends
from learnloop_service.app.settings import Settings
from learnloop_service.training.backends.base import Backend
from tests.fakes.hosted_server import KEY, HostedServer, hosted_server
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.app.served import run_with, served, settings_for

HOSTED = {"backend": "serverless", "model": {"base_model": "OpenPipe/Qwen3-14B-Instruct", "name": "agent"}}


class OurBackends(ScriptedBackend):
    """Those of the settings, of which the embedded one is not asked for."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    async def connect(self, name: str) -> Backend:
        return await Backends(self._settings, None).connect(name)  # type: ignore[arg-type]


@pytest.fixture
async def hosted() -> AsyncIterator[HostedServer]:
    async with hosted_server() as server:
        yield server


async def test_a_base_model_that_cannot_be_loaded_is_named_and_refused(tmp_path: Path, database_url: str) -> None:
    whole, cut = make_tiny_model(tmp_path / "whole"), make_tiny_model(tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    bases = {"whole": whole, "cut": cut}
    settings = settings_for(tmp_path / "data", database_url, engine_base_models=bases)
    fault = "model.safetensors: it is cut off: 1000 bytes are missing at its end"
    async with served(settings, ScriptedLoop()) as client:
        reply = await client.post("/learn-loop", json={"model": {"base_model": "cut", "name": "a"}})
        assert reply.status_code == 422
        [error] = reply.json()["errors"]
        assert (error["loc"], fault in error["msg"]) == (["body", "model", "base_model"], True)
        items = {item["name"]: item for item in (await client.get("/backends")).json()["items"]}
        assert items["embedded"]["unusable_base_models"] == [{"name": "cut", "reason": fault}]
        assert (await client.get("/health/ready")).json()["unusable_base_models"] == {"cut": fault}
        accepted = await client.post("/learn-loop", json={"model": {"base_model": "whole", "name": "a"}})
        assert accepted.status_code == 202
        [warning] = accepted.json()["warnings"]
        assert "It was never examined" in warning
        assert "learnloop bases check whole" in warning
        run = (await client.get(f"/runs/{accepted.json()['run_id']}")).json()
        assert run["warnings"] == [warning]


async def test_without_its_setting_a_backend_is_refused(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    settings = settings_for(tmp_path, database_url)
    async with served(settings, ScriptedLoop()) as client:
        items = {item["name"]: item for item in (await client.get("/backends")).json()["items"]}
        embedded = items["embedded"]
        assert "max_kl" in embedded.pop("train_options")
        assert embedded == {
            "name": "embedded",
            "available": True,
            "reason": None,
            "unusable_base_models": [],
            "on_engine": True,
            "takes_tuning": True,
            "trains_on_demonstrations": True,
            "samples_while_training": True,
            "settings": [],
        }
        assert not items["serverless"]["on_engine"]
        key, *_ = items["serverless"]["settings"]
        assert key == {"name": "WANDB_API_KEY", "description": "Key of the W&B account.", "is_set": False}
        assert "WANDB_API_KEY" in items["serverless"]["reason"]
        for backend, message in (("serverless", "WANDB_API_KEY"), ("local", "the extra `gpu`")):
            reply = await client.post("/learn-loop", json=HOSTED | {"backend": backend})
            assert reply.status_code == 422
            [error] = reply.json()["errors"]
            assert (error["loc"], message in error["msg"]) == (["body", "backend"], True)


async def test_a_run_on_the_hosted_one(
    tmp_path: Path, database_url: str, hosted: HostedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("LEARNLOOP_SERVERLESS_URL", hosted.url)
    settings = settings_for(tmp_path, database_url)
    loop = ScriptedLoop()
    async with served(settings, loop, OurBackends(settings)) as client:
        refused = await client.post("/learn-loop", json={"backend": "serverless"})
        assert "does not have the base model learnloop/tiny" in refused.json()["errors"][0]["msg"]
        accepted: Any = (await client.post("/learn-loop", json=HOSTED | {"iterations": 2})).raise_for_status().json()
        run = await run_with(client, accepted["run_id"], "completed", "failed")
        assert (run["status"], run["backend"], run["error"]) == ("completed", "serverless", None)
        assert hosted.model("agent").trained == [0, 1]
        hosted.failure = "out of memory on rank 3"
        accepted = (await client.post("/learn-loop", json=HOSTED | {"iterations": 1})).raise_for_status().json()
        run = await run_with(client, accepted["run_id"], "completed", "failed")
        assert run["status"] == "failed"
        assert "out of memory on rank 3" in run["error"]
