"""The page of a run: what it shows first, at the widths that people use, and a next step wherever it stops."""

import asyncio
import itertools
import json
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.async_api import expect

from learnloop_service.app.processes.engine import EngineProcess
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult
from tests.browser.visit import Visit
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app import talking_runs
from tests.integration.app.diagnosed_runs import MALFORMED
from tests.integration.app.diagnosed_runs import RUN as DIAGNOSED
from tests.integration.app.engine_children import ENGINE_CHILD, engine_pid
from tests.integration.app.quick_pulses import quick_pulses  # noqa: F401  # a fixture
from tests.integration.app.runs_without_signal import service as service_that_answers
from tests.integration.app.served import ended, run_with, served, settings_for, start

pytestmark = pytest.mark.long

WIDTHS = ((1440, 900), (1280, 720), (820, 1180), (390, 844))
_ONE_LINE_PX = 32


async def test_charts_show_what_there_is_and_lead_to_the_rollouts(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    may_end = threading.Event()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(gates={2: may_end})) as client:
        body = {"iterations": 12, "model": {"name": "charted"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await visit.page.set_viewport_size({"width": 1280, "height": 720})
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.text("1 of 12 iterations")).to_be_visible()
        await visit.go(f"/runs/{run_id}/metrics?metrics=skipped_groups.no_signal")
        groups = visit.page.get_by_role("img", name="Groups without signal").locator(".axes g text")
        await expect(groups).to_have_text(["0", "1"])  # there is no half of a group, and no 0 twice
        await visit.go(f"/runs/{run_id}")
        held_out = visit.page.get_by_role("img", name="Success on held-out scenarios")
        rewards = visit.page.get_by_role("img", name="Training rewards")
        for chart in (held_out, rewards):
            await expect(chart).to_be_visible()
            box = await chart.bounding_box()
            assert box
            assert box["y"] + box["height"] <= 720, "the chart is not above the fold"
        assert await held_out.locator("circle").count() == 2, "the only evaluations so far are points"
        await expect(held_out.locator(".reference")).to_contain_text("before training 20%")
        await expect(held_out.locator(".axes")).to_contain_text("10")  # the axis has all iterations, not those so far
        await expect(rewards.locator(".heat")).to_have_count(2)
        cell_box = await rewards.locator(".heat").first.bounding_box()
        assert cell_box
        await visit.page.mouse.click(cell_box["x"] + cell_box["width"] / 2, cell_box["y"] + cell_box["height"] / 2)
        await expect(visit.page.get_by_label("Iteration", exact=True)).to_have_value("1")
        for width, height in WIDTHS:
            await visit.page.set_viewport_size({"width": width, "height": height})
            for end in await visit.page.locator(".rollouts .end").all():
                end_box = await end.bounding_box()
                assert end_box
                assert end_box["height"] < _ONE_LINE_PX, f"at {width} pixels a word breaks: {await end.inner_text()}"
        may_end.set()


async def test_a_used_up_budget_asks_for_a_higher_one(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with talking_runs.service(data_dir, database_url) as (client, _):
        run_id = await start(client, talking_runs.RUN | {"budget": {"max_tokens": 5_000}})
        assert (await ended(client, run_id))["status"] == "paused"
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.text("Paused: the budget of 5,000 tokens is used up")).to_be_visible()
        assert await visit.inaccessible() == []
        limit = visit.page.get_by_label("New limit, in tokens")
        assert int(await limit.input_value()) > 5_000
        await limit.fill("5001")
        await visit.button("Resume").click()
        await expect(visit.page.get_by_role("alert")).to_contain_text("Resume it with a `budget`")
        await limit.fill("100000")
        await visit.button("Resume").click()
        await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("completed")


async def test_machine_time_is_priced_beside_what_others_are_paid(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    settings = settings_for(data_dir, database_url, machine_price_per_hour=3600.0)
    async with served(settings, ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        cost = (await run_with(client, run_id, "completed"))["cost"]["total_usd"]
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        sentence = re.compile(rf"0 points for it; \${cost:.2f} for .* of the machine at \$3,600\.00 an hour")
        await expect(visit.text(sentence)).to_be_visible()
        spent = visit.page.locator(".spent > div", has_text="Machine time")
        await expect(spent.locator("dd")).to_contain_text(f"${cost:.2f}")
        assert await visit.inaccessible() == []
        await visit.open(str(client.base_url).rstrip("/"), "/")
        await expect(visit.page.get_by_role("cell", name=f"${cost:.2f}")).to_be_visible()


class _Counting(ScriptedLoop):
    """Reports one rollout of the baseline more, four times a second, until it is released."""

    async def __call__(self, *arguments: Any, progress: Any, **more: Any) -> AsyncGenerator[IterationResult, None]:
        for finished in itertools.count(1):
            if self.gates[0].is_set():
                break
            progress(IterationProgress(0, Phase.EVALUATE, min(finished, 199), 200))
            await asyncio.sleep(0.25)
        async for result in super().__call__(*arguments, progress=progress, **more):
            yield result


async def test_the_baseline_has_a_percentage_and_a_time(visit: Visit, data_dir: Path, database_url: str) -> None:
    released = threading.Event()
    async with served(settings_for(data_dir, database_url), _Counting(gates={0: released})) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.text(re.compile(r"^\d+% of the baseline, about \d+ (s|min.*) left$"))).to_be_visible(
            timeout=30_000
        )
        assert await visit.inaccessible() == []
        released.set()
        await expect(visit.text("1 of 1 iteration")).to_be_visible()


async def test_a_cause_is_repaired_by_a_fork(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with service_that_answers(data_dir, database_url, MALFORMED) as client:
        run_id = (await client.post("/learn-loop", json=DIAGNOSED)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        cause = visit.page.locator(".cause")
        await expect(cause).to_contain_text("Likely cause")
        await expect(cause).to_contain_text("since iteration 1")
        assert await visit.inaccessible() == []
        await visit.button("Fork with this change").click()
        await expect(visit.text("forked from")).to_be_visible()
        forks = [run for run in (await client.get("/runs")).json()["items"] if run["run_id"] != run_id]
        [fork] = [(await client.get(f"/runs/{run['run_id']}")).json() for run in forks]
        assert fork["request"]["warm_start"]["demonstrations"] == {"oracle": 64}


async def test_rollouts_can_be_read_before_their_iteration_ends(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    first, others = asyncio.Event(), asyncio.Event()
    arguments = json.dumps({"answer": "the seventh of May", "sources": ["x"]})

    async def answer(_: Mapping[str, Any]) -> Reply:
        if first.is_set():
            await others.wait()
        first.set()
        return Reply((("return_final_answer", arguments),))

    async with (
        scripted_chat(answer) as chat,
        served(settings_for(data_dir, database_url), cast(Any, learn_loop), ScriptedBackend(chat.url)) as client,
    ):
        try:
            run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
            await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}/trajectories")
            await expect(visit.text("1 rollout of the iteration in progress")).to_be_visible()
            await visit.page.locator(".finished summary").first.click()
            await expect(visit.text("the seventh of May")).to_be_visible()
            assert await visit.inaccessible() == []
        finally:
            others.set()


@pytest.mark.usefixtures("quick_pulses")
async def test_a_run_says_that_the_engine_is_frozen_and_when_it_goes_on(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    settings = settings_for(data_dir, database_url, restart_after_s=0)
    engine, may_end = EngineProcess(settings, ENGINE_CHILD), threading.Event()
    await engine.start()
    try:
        async with served(settings, ScriptedLoop(gates={2: may_end}), engine=engine) as client:
            await engine.address()
            run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
            await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
            await expect(visit.text("1 of 2 iterations")).to_be_visible()
            notice = visit.text("The run is waiting for the service")
            await expect(notice).to_have_count(0)
            os.kill(engine_pid(data_dir), signal.SIGSTOP)
            await expect(notice).to_be_visible()
            await expect(visit.text("engine unresponsive. The run continues by itself")).to_be_visible()
            os.kill(engine_pid(data_dir), signal.SIGCONT)
            await expect(notice).to_have_count(0)
            may_end.set()
            await run_with(client, run_id, "completed")
    finally:
        await engine.stop()
