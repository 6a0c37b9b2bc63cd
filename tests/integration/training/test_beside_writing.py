"""Checkpoints that are written while the next rollouts run, with the real engine on a disk that stands still."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, Moment
from tests.integration.training.mortal_runs import CHAT, CONFIG, JOBS, Stage, assert_alike

pytestmark = pytest.mark.long

TWO = replace(CONFIG, iterations=2)
FATES = ["the engine is killed", "the loop dies", "", "the disk is full", ""]
"""What happens to each training once replies from its step have come that is not on disk: nothing at last."""


async def test_a_death_between_a_step_and_its_checkpoint_changes_no_bit(
    engine: EngineProcess, proxy: LossyProxy, tmp_path: Path
) -> None:
    undisturbed = await Stage(proxy, "email_search", TWO).to_the_end()
    hold_file, stage, fates = tmp_path / "held", Stage(proxy, "email_search", TWO), list(FATES)
    command, environment = ("tests.fakes.held_disk_engine",), {"HELD_DISK": str(hold_file)}

    def start() -> EngineProcess:
        started = EngineProcess(tmp_path, "--slots", "16", environment=environment, command=command).__enter__()
        proxy.target = started.base_url
        return started

    running, early = start(), 0
    checkpoints = tmp_path / "models" / stage.model.project / stage.model.name / "checkpoints"

    async def loses(moment: Moment, request: str) -> bool:
        nonlocal running, early
        stage.happens(f"{moment} {request}")
        if (moment, request) == ("request", JOBS):
            hold_file.write_text("")
            early = 0
        if (moment, request) != ("reply", CHAT) or not hold_file.exists() or hold_file.stat().st_size:
            return False
        early += 1
        if early < 3:
            return False
        iteration, fate = len(stage.results), fates.pop(0)
        assert "train" not in stage.book.saved[iteration]
        assert not stage.book.saved[iteration + 1]
        assert not (checkpoints / f"{iteration:06d}").exists()
        if fate == "the engine is killed":
            running.stop(signal.SIGKILL)
            hold_file.unlink()
            running = start()
            return True
        if fate == "the loop dies":
            stage.kill = lambda _: True
            stage.happens(fate)
            stage.kill = lambda _: False
        elif fate == "the disk is full":
            hold_file.write_text("full")
        else:
            hold_file.unlink()
        early = 0
        return False

    stage.loses = loses  # type: ignore[method-assign]
    try:
        await stage.to_the_end()
        assert fates == []
        assert stage.lives == 4
        assert_alike(stage, undisturbed, running, engine)
    finally:
        hold_file.unlink(missing_ok=True)
        running.stop()
