"""The page says whether a run learned, and shows one kind of held-out figures at a time."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long

BEFORE = [True] * 8 + [False] * 16


async def test_a_run_that_got_worse_looks_worse_on_every_page(visit: Visit, data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: BEFORE, 1: [False] * 24})
    async with served(settings_for(data_dir, database_url), loop) as client:
        body = {"iterations": 1, "model": {"name": "worse"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        verdict = (await run_with(client, run_id, "completed"))["verdict"]
        text, long_text = verdict["text"], f"{verdict['sentence']}. {verdict['details']}"
        assert text.startswith("Got worse: held-out success fell from 33% to 0%")
        await visit.open(str(client.base_url).rstrip("/"))
        row = visit.page.locator(".run")
        await expect(row.locator(".verdict-mark.bad")).to_have_attribute("title", text)
        await expect(row.locator(".gain-text")).to_have_text("33% → 0%")
        await expect(row.locator(".status")).not_to_have_class("status good")
        await visit.go(f"/runs/{run_id}")
        await expect(visit.page.locator("div.verdict.bad")).to_have_text(long_text)
        figure = visit.page.locator(".figures-row > div").first
        await expect(figure).to_contain_text("33% → 0%")
        await expect(figure).to_contain_text("0% to 14% of 24 validation scenarios, sampled")
        await visit.link("What it learned").click()
        await expect(visit.page.locator("div.verdict.bad")).to_have_text(long_text)
        await visit.link("what 0?").click()
        await expect(visit.page.locator(".expected")).to_have_text("Expected: that")
        assert await visit.inaccessible() == []


async def test_one_switch_chooses_the_held_out_figures(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 2, "model": {"name": "switched"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        figure = visit.page.locator(".figures-row > div").first
        await expect(figure).to_contain_text("of 1 validation scenario, sampled")
        await visit.button("Test").click()
        await expect(figure).to_contain_text("of 1 test scenario, sampled, best checkpoint")
        await visit.link("What it learned").click()
        await visit.settled()
        await expect(visit.button("Test")).to_have_attribute("aria-pressed", "true")
        film = visit.page.locator(".film h2").first
        await expect(film).to_have_text(
            "1 test scenario, sampled, best checkpoint by 2 checkpoints, sorted by when they were learned"
        )
        await visit.button("Sampled").click()
        await expect(film).to_contain_text("1 validation scenario, sampled by 2 checkpoints")
        assert await visit.inaccessible() == []
