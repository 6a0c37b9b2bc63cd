"""While a run is worked on, its page says what the engine is doing."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from learnloop_service.app.processes.engine import held_engine
from tests.browser.visit import Visit
from tests.conditions import answered, until
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long


async def test_a_running_run_shows_the_engine(visit: Visit, data_dir: Path, database_url: str, tmp_path: Path) -> None:
    loop = ScriptedLoop(gates={1: threading.Event()})
    with EngineProcess(tmp_path) as process:
        settings = settings_for(data_dir, database_url, engine_url=process.base_url.removesuffix("/v1"))
        async with held_engine(settings) as engine, served(settings, loop, engine=engine) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
            await until(loop.has_entered(1).is_set)

            async def state() -> Any:
                return (await client.get("/engine")).raise_for_status().json()

            engine_state = await answered(state, lambda engine: engine["devices"])
            assert (engine_state["state"], engine_state["sampled_tokens"], engine_state["requests_waiting"]) == (
                "shared",
                0,
                0,
            )
            assert engine_state["devices"][0]["memory_used_bytes"] > 0
            await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
            strip = visit.page.get_by_label("Engine", exact=True)
            await expect(strip).to_contain_text(re.compile(r"CPU, \d+ threads.*\d GB"))
            await expect(strip).to_contain_text("0 tokens/s")
            await expect(strip).to_contain_text("0 + 0 waiting")
            await expect(strip).to_contain_text("0% sampling, 0% training")
            assert await visit.inaccessible() == []
            loop.gates[1].set()
            await expect(strip).to_have_count(0)
