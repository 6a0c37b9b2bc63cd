"""The engine's supervision, with a child process that only plays the engine."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.processes import child as child_process
from learnloop_service.app.processes.engine import EngineProcess, EngineState, EngineUnavailable
from learnloop_service.training.engine_flags import KEY_VARIABLE
from tests.conditions import until
from tests.integration.app.engine_children import ENGINE_CHILD, engine_pid
from tests.integration.app.served import settings_for


@asynccontextmanager
async def _engine(data_dir: Path, **settings: Any) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(settings_for(data_dir, None, **settings), ENGINE_CHILD)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def _ready(data_dir: Path) -> dict[str, int]:
    return dict(json.loads((data_dir / "engine" / "ready.json").read_text()))


async def test_it_comes_up_behind_the_start_and_goes_with_us(data_dir: Path) -> None:
    async with _engine(data_dir) as engine:
        states = [engine.state]
        address = await engine.address()
        states.append(engine.state)
        assert states == [EngineState.STARTING, EngineState.READY]
        assert address.url == f"http://127.0.0.1:{_ready(data_dir)['port']}"
        assert address.key not in repr(address)
        pid = engine_pid(data_dir)
        assert "--checkpoint-store" not in psutil.Process(pid).cmdline()
    assert str(engine.state) == "stopped"
    assert not psutil.pid_exists(pid)


async def test_it_is_given_the_checkpoint_store(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the store")
    async with _engine(data_dir, engine_checkpoint_store="s3://bucket/models") as engine:
        await engine.address()
        process = psutil.Process(engine_pid(data_dir))
        flags = process.cmdline()
        assert flags[flags.index("--checkpoint-store") + 1] == "s3://bucket/models"
        assert process.environ()["AWS_SECRET_ACCESS_KEY"] == "of the store"


async def test_it_gets_no_key_of_ours_or_of_a_provider(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEARNLOOP_OPERATOR_KEY", "OPENAI_API_KEY", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "a canary")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    async with _engine(data_dir) as engine:
        address = await engine.address()
        variables = psutil.Process(engine_pid(data_dir)).environ()
        assert "a canary" not in variables.values()
        assert (variables["OMP_NUM_THREADS"], variables["PATH"]) == ("1", os.environ["PATH"])
        assert variables[KEY_VARIABLE] == address.key


async def test_a_killed_engine_comes_back_on_its_port(data_dir: Path) -> None:
    async with _engine(data_dir) as engine:
        before = await engine.address()
        first = engine_pid(data_dir)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(first) and engine.state is not EngineState.READY)
        assert await engine.address() == before
        assert engine_pid(data_dir) != first


@pytest.fixture
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.engine.Pulse", partial(Pulse, period_s=0.05, deadline_s=2.0))


async def test_a_frozen_engine_is_noticed_and_so_is_its_thaw(data_dir: Path, quick_pulse: None) -> None:
    async with _engine(data_dir, restart_after_s=0) as engine:
        address = await engine.address()
        pid = engine_pid(data_dir)
        os.kill(pid, signal.SIGSTOP)
        await engine.unresponsive()
        assert (str(engine.state), engine.trouble and engine.trouble.reason) == ("unresponsive", "it does not answer")
        with pytest.raises(EngineUnavailable, match="does not answer"):
            await engine.address()
        os.kill(pid, signal.SIGCONT)
        await until(lambda: engine.state is EngineState.READY)
        assert (engine.trouble, await engine.address(), engine_pid(data_dir)) == (None, address, pid)


async def test_an_engine_that_stays_frozen_is_ended_and_started_again(data_dir: Path, quick_pulse: None) -> None:
    async with _engine(data_dir, restart_after_s=0.1) as engine:
        address = await engine.address()
        frozen = engine_pid(data_dir)
        os.kill(frozen, signal.SIGSTOP)
        await engine.unresponsive()
        await until(lambda: engine.state is not EngineState.UNRESPONSIVE)
        assert await engine.address() == address
        assert (engine.trouble, engine_pid(data_dir) == frozen) == (None, False)


async def test_a_frozen_engine_stops_with_us(data_dir: Path, quick_pulse: None) -> None:
    async with _engine(data_dir, restart_after_s=0) as engine:
        await engine.address()
        frozen = engine_pid(data_dir)
        os.kill(frozen, signal.SIGSTOP)
        await engine.unresponsive()
    assert not psutil.pid_exists(frozen)


async def test_an_engine_that_had_worked_is_started_again_without_a_pause(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.engine._STABLE_S", -1.0)
    for pause in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(f"learnloop_service.app.processes.engine.{pause}", 3600.0)
    async with _engine(data_dir) as engine:
        address = await engine.address()
        killed = engine_pid(data_dir)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: engine.trouble is not None)
        await until(lambda: engine.trouble is None)
        assert await engine.address() == address
        assert engine_pid(data_dir) != killed


async def test_an_engine_that_never_listens_is_ended_and_started_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.engine._STABLE_S", -1.0)
    monkeypatch.setattr("learnloop_service.app.processes.engine._START_TIMEOUT_S", 0.1)
    (data_dir / "orders").write_text("hang at start")
    async with _engine(data_dir) as engine:
        await until(lambda: engine.trouble is not None)
        (data_dir / "orders").unlink()
        monkeypatch.setattr(
            "learnloop_service.app.processes.engine._START_TIMEOUT_S", 600.0
        )  # the next start may take long
        await engine.address()


async def test_an_engine_that_cannot_start_is_given_up_with_its_last_words(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.engine._FIRST_PAUSE_S", 0.01)
    (data_dir / "orders").write_text("die at start")
    async with _engine(data_dir) as engine:
        with pytest.raises(EngineUnavailable, match="no torch here"):
            await engine.address()
        assert engine.state is EngineState.FAILED
        (data_dir / "orders").unlink()
        assert (await engine.address()).url  # whoever asks next makes it try again


async def test_a_leftover_of_a_killed_service_is_ended(data_dir: Path) -> None:
    (data_dir / "engine").mkdir(parents=True)
    stranger = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    leftover = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    child_process.remember(data_dir / "engine" / "process.json", leftover.pid)
    async with _engine(data_dir) as engine:
        await engine.address()
        assert child_process.read(data_dir / "engine" / "process.json") is not None
        await leftover.wait()
        assert not psutil.pid_exists(leftover.pid)
        assert stranger.returncode is None
    stranger.kill()
    await stranger.wait()


async def test_a_leftover_is_known_also_when_the_wall_clock_was_set(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    child_process.remember(data_dir / "process.json", leftover.pid)
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: real(process) + 3600)
    assert child_process.end_leftover(data_dir / "process.json") is True
    await leftover.wait()


async def test_a_reused_pid_is_spared(data_dir: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    child_process.remember(data_dir / "process.json", stranger.pid)
    note = json.loads((data_dir / "process.json").read_text())
    (data_dir / "process.json").write_text(json.dumps(note | {"started": note["started"] + "1"}))
    assert child_process.end_leftover(data_dir / "process.json") is False
    stranger.kill()
    await stranger.wait()
