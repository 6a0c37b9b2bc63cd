"""The engine's supervision, with a child process that only plays the engine."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from app.processes import child as child_process
from app.processes.engine import EngineProcess, EngineState, EngineUnavailable
from tests.conditions import until
from tests.integration.app.served import settings_for

_CHILD = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "engine_child.py"))


@asynccontextmanager
async def _engine(data_dir: Path) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(settings_for(data_dir, None), _CHILD)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def _pid(data_dir: Path) -> int:
    process = child_process.read(data_dir / "engine" / "process.json")
    assert process is not None
    return process.pid


async def test_it_comes_up_behind_the_start_and_goes_with_us(data_dir: Path) -> None:
    async with _engine(data_dir) as engine:
        states = [engine.state]
        address = await engine.address()
        states.append(engine.state)
        assert states == [EngineState.STARTING, EngineState.READY]
        assert address.url == "http://127.0.0.1:45678"
        assert address.key not in repr(address)
        pid = _pid(data_dir)
    assert str(engine.state) == "stopped"
    assert not psutil.pid_exists(pid)


async def test_a_killed_engine_comes_back_on_its_port(data_dir: Path) -> None:
    async with _engine(data_dir) as engine:
        before = await engine.address()
        first = _pid(data_dir)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(first) and engine.state is not EngineState.READY)
        assert await engine.address() == before
        assert _pid(data_dir) != first


async def test_an_engine_that_cannot_start_is_given_up_with_its_last_words(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.engine._FIRST_PAUSE_S", 0.01)
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


async def test_a_reused_pid_is_spared(data_dir: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    child_process.remember(data_dir / "process.json", stranger.pid)
    text = (data_dir / "process.json").read_text()
    (data_dir / "process.json").write_text(text.replace('"started": 1', '"started": 2'))
    assert child_process.end_leftover(data_dir / "process.json") is False
    stranger.kill()
    await stranger.wait()
