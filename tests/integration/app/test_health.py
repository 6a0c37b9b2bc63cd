"""What the service says of the parts that it stands on while one of them is frozen. It answers immediately."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil

from learnloop_service.app.processes.engine import EngineProcess
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.engine_children import ENGINE_CHILD, engine_pid
from tests.integration.app.frozen_server import freeze, thaw
from tests.integration.app.quick_pulses import quick_pulses  # noqa: F401  # a fixture
from tests.integration.app.served import served, settings_for


async def _status(client: httpx.AsyncClient, status: str) -> tuple[int, Any]:
    """The readiness once it has that status."""
    reply = await answered(lambda: client.get("/health/ready"), lambda reply: reply.json()["status"] == status)
    return reply.status_code, reply.json()


async def test_a_frozen_engine_is_said_and_holds_up_nobody(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, restart_after_s=0)
    engine = EngineProcess(settings, ENGINE_CHILD)
    await engine.start()
    try:
        async with served(settings, ScriptedLoop(), engine=engine) as client:
            await engine.address()
            await _status(client, "ready")
            assert (await client.get("/v1/models")).status_code == 200
            os.kill(engine_pid(data_dir), signal.SIGSTOP)
            waiting = await client.get("/v1/models")
            assert (waiting.status_code, waiting.json()["error"]["message"]) == (503, "The engine does not answer.")
            assert int(waiting.headers["retry-after"]) >= 1
            code, health = await _status(client, "degraded")
            assert (code, health["database"], health["engine"]) == (200, "ok", "unresponsive")
            [part] = health["degraded"]
            assert (part["part"], part["reason"]) == ("engine", "it does not answer")
            assert (await client.get("/v1/models")).status_code == 503
            os.kill(engine_pid(data_dir), signal.SIGCONT)
            assert (await _status(client, "ready"))[1]["degraded"] == []
            assert (await client.get("/v1/models")).status_code == 200
    finally:
        await engine.stop()


async def test_a_frozen_database_is_said(data_dir: Path) -> None:
    async with served(settings_for(data_dir, None, restart_after_s=0), ScriptedLoop()) as client:
        postmaster = psutil.Process(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]))
        processes = freeze(postmaster)
        code, health = await _status(client, "not ready")
        assert (code, health["database"]) == (503, "unreachable")
        assert [part["part"] for part in health["degraded"]] == ["database"]
        assert "since" in health["degraded"][0]
        thaw(processes)
        assert (await _status(client, "ready"))[0] == 200
