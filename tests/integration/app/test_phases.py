"""What a run's owner asks for, and a loop that blocks, in each phase of an iteration."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.training.backends.base import Policy
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult, RunConfig
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop, scripted_result
from tests.integration.app.held_leases import held_past_its_lease
from tests.integration.app.served import run_with, served, settings_for

PHASES = tuple(Phase)


class PhasedLoop(ScriptedLoop):
    """Goes through the phases of each iteration, and does `in_phase` in that of iteration 1 that is called `held`."""

    def __init__(self, held: str, in_phase: Callable[[], Any]) -> None:
        super().__init__()
        self.held = held
        self.in_phase = in_phase
        self.begun: list[str] = []

    async def __call__(
        self, config: RunConfig, environment: object, judge: object, policy: Policy, **options: Any
    ) -> AsyncGenerator[IterationResult, None]:
        try:
            for iteration in range(options["resume"].iteration if options["resume"] else 0, config.iterations + 1):
                for phase in PHASES:
                    self.begun.append(f"{phase} {iteration}")
                    options["progress"](IterationProgress(iteration, phase, 0, 1))
                    if (phase, iteration) == (self.held, 1):
                        await self.in_phase()
                yield scripted_result(policy, iteration, iteration, config.iterations, "the answer")
        finally:
            self.closed.set()


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _types(client: httpx.AsyncClient, run_id: str) -> list[str]:
    return [event["type"] for event in (await client.get(f"/runs/{run_id}/events")).json()["items"]]


async def test_a_run_is_stopped_in_every_phase_and_begins_no_later_one(data_dir: Path, database_url: str) -> None:
    loop = PhasedLoop("", _for_ever)
    async with served(settings_for(data_dir, database_url), loop) as client:
        for verb, status in (("cancel", "cancelled"), ("pause", "paused")):
            for loop.held in PHASES:
                loop.begun.clear()
                run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
                await until(lambda: f"{loop.held} 1" in loop.begun)
                assert (await client.post(f"/runs/{run_id}/{verb}")).status_code == 202
                run = await run_with(client, run_id, status)
                assert loop.begun[-1] == f"{loop.held} 1"
                assert [point["iteration"] for point in run["iterations"]] == [0]
                types = await _types(client, run_id)
                assert types[-1] == f"run.{status}"
                assert types.count(f"run.{verb}_requested") == types.count(f"run.{status}") == 1
                assert not {"run.completed", "run.failed"} & set(types)


async def test_a_paused_run_goes_on_from_the_phase_where_it_was_stopped(data_dir: Path, database_url: str) -> None:
    loop = PhasedLoop("train", _for_ever)
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        await until(lambda: "train 1" in loop.begun)
        await client.post(f"/runs/{run_id}/pause")
        await run_with(client, run_id, "paused")
        loop.held = ""
        await client.post(f"/runs/{run_id}/resume")
        run = await run_with(client, run_id, "completed")
        assert [point["iteration"] for point in run["iterations"]] == [0, 1, 2]


@pytest.mark.parametrize("blocked", ["the run's loop", "the service's loop"])
async def test_a_blocked_loop_keeps_its_run(data_dir: Path, database_url: str, blocked: str) -> None:
    """The heartbeat is on a thread of its own."""
    was_held: list[bool] = []
    service = asyncio.get_running_loop()

    async def block() -> None:
        was_held.append(held_past_its_lease(database_url))

    async def block_the_service() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(block(), service))

    loop = PhasedLoop("rollout", block if blocked == "the run's loop" else block_the_service)
    async with served(settings_for(data_dir, database_url, lease_s=1), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await run_with(client, run_id, "completed")
        assert (await _types(client, run_id)).count("run.started") == 1
    assert was_held == [True]
