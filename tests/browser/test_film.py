"""The film of a run: when it learned each held-out scenario, its answers through the checkpoints, and what training
made likelier."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from tests.browser.real_service import real_service
from tests.browser.visit import Visit
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.film_scenarios import HELD_OUT
from tests.integration.app.scored_runs import RUN
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_scenarios_are_watched_through_the_checkpoints(visit: Visit, data_dir: Path, database_url: str) -> None:
    page = visit.page
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out=HELD_OUT)) as client:
        body = {"iterations": 2, "model": {"name": "watched"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await visit.link("Watch them").click()
        await visit.settled()
        table = page.get_by_role("region", name="Scenarios by checkpoints")
        order = [2, 5]  # those that were learned, in order
        questions = await table.locator('th[scope="row"] a').all_inner_texts()
        assert questions == ["what 0?", "what 2?", "what 5?", "what 3?", "what 4?", "what 1?", "what 6?"]
        trends = await table.locator(".trend").all_inner_texts()
        assert trends == ["Right before and after", "Learned", "Learned and lost", "Got worse", "Never right"]
        learned = table.get_by_role("row", name=re.compile(r"what 5\?"))
        cells = await learned.get_by_role("img").evaluate_all("all => all.map(each => each.ariaLabel)")
        assert cells == ["0 of 1 right", "0 of 1 right", "1 of 1 right"]
        await _follow_the_keys(visit, order)
        await _play(visit)
        right = HELD_OUT[run["best_checkpoint"]["step"]]
        wrong = [name for name in questions if not right[int(name[len("what ")])]]
        await visit.button(f"Still wrong {len(wrong)}").click()
        await expect(table.locator('th[scope="row"] a')).to_have_text(wrong)
        await visit.button("Got worse 1").click()
        await expect(table.locator('th[scope="row"] a')).to_have_text("what 4?")
        await expect(page).to_have_url(re.compile("trend=got_worse"))
        await visit.settled()
        await visit.is_well_made()
        await visit.button("Score the tokens").click()
        await expect(page.get_by_role("alert")).to_contain_text("The token ids of rollout")


async def _follow_the_keys(visit: Visit, learned: list[int]) -> None:
    """The arrow keys go through the checkpoints and the scenarios; the address and the answers follow."""
    page = visit.page
    player = page.get_by_role("region", name="Answers through the checkpoints")
    await expect(player.get_by_role("heading", level=2)).to_have_text(f"what {learned[0]}?")
    await expect(player.locator(".expected")).to_have_text("Expected: that")
    frames = player.locator(".frame")
    assert await frames.locator(".frame-name").all_inner_texts() == ["Before training", "Step 1", "Step 2"]
    await expect(frames.nth(2)).to_have_attribute("aria-pressed", "true")
    await visit.link(f"what {learned[0]}?").click()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")  # there is nothing before the baseline
    await expect(frames.nth(0)).to_have_attribute("aria-pressed", "true")
    await expect(frames.nth(0)).to_contain_text("✗ wrong")
    await expect(page).to_have_url(re.compile("step=0"))
    await page.keyboard.press("ArrowDown")
    await expect(player.get_by_role("heading", level=2)).to_have_text(f"what {learned[1]}?")
    await expect(visit.link(f"what {learned[1]}?")).to_be_focused()
    await page.keyboard.press("ArrowRight")
    await expect(page).to_have_url(re.compile(r"scenario=validation%3A5&step=1"))
    await visit.settled()
    await expect(player.get_by_role("link", name="Before training")).to_be_visible()
    await expect(player.get_by_role("link", name="Step 1")).to_be_visible()
    address = page.url
    await page.goto("about:blank")
    await page.goto(address)  # leads to the same picture
    await expect(frames.nth(1)).to_have_attribute("aria-pressed", "true")


async def _play(visit: Visit) -> None:
    frames = visit.page.locator(".frame")
    await frames.nth(2).click()
    await visit.page.get_by_role("button", name="Play").click()
    await expect(frames.nth(0)).to_have_attribute("aria-pressed", "true")
    await expect(frames.nth(2)).to_have_attribute("aria-pressed", "true")
    await expect(visit.page.get_by_role("button", name="Play")).to_be_visible()


async def test_what_training_made_likelier_is_shown_token_by_token(
    visit: Visit, data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    page = visit.page
    with EngineProcess(tmp_path) as engine:
        async with real_service(data_dir, database_url, engine) as base:
            scored = await _scored(base)
            await visit.open(base, f"/runs/{scored['run_id']}/trajectories/{scored['trajectory_id']}")
            await visit.link("Through the checkpoints").click()
            await visit.settled()
            panel = page.get_by_role("region", name="What training made likelier")
            await panel.get_by_role("button", name="Score the tokens").click()
            first = scored["turns"][0]
            await expect(panel.locator("h4")).to_have_count(len(scored["turns"]))
            spans = panel.locator("p.tokens").first.locator("span")
            await expect(spans).to_have_count(len(first["texts"]))
            titles = await spans.evaluate_all("all => all.map(each => each.title)")
            assert [bool(re.fullmatch(r"\d+% → \d+%", title)) for title in titles] == [True] * len(titles)
            await visit.is_well_made()
            await panel.get_by_label("Turns").select_option("1")
            await panel.get_by_role("button", name="Score the tokens").click()
            await expect(panel.locator("h4")).to_have_count(1)


async def _scored(base: str) -> Any:
    """The scored tokens of a held-out rollout with at least two turns, with the id of its run."""
    async with httpx.AsyncClient(base_url=base, timeout=120, trust_env=False) as client:
        run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        listed = await client.get(f"/runs/{run_id}/trajectories", params={"kind": "evaluation", "mode": "greedy"})
        rollout = next(row for row in listed.raise_for_status().json()["items"] if row["turns"] >= 2)
        question = {"checkpoints": [0, 1]}
        scored = await client.post(f"/trajectories/{rollout['id']}/likelihood", json=question)
        return scored.raise_for_status().json() | {"run_id": run_id}
