"""The failures of an evaluation on its page, and of a run on its own, with the rollouts behind them."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.failing_models import compared, failing_models
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_an_evaluations_failures_lead_to_their_rollouts(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with failing_models(data_dir, database_url) as client:
        id = await compared(client)
        await ended(client, id)
        await visit.open(str(client.base_url).rstrip("/"), f"/evaluations/{id}")
        await expect(visit.text("before: 1 of 4 tasks solved → after: 1 of 4 tasks solved")).to_be_visible()
        patterns = visit.page.get_by_role("table", name="Failing tasks by pattern")
        unread = patterns.get_by_role("row", name="wrong answer: found the source and did not read it").first
        await expect(unread).to_contain_text("wrong_answer/read_source")
        await expect(unread.get_by_role("progressbar", name="Now")).to_have_attribute("aria-valuenow", "1")
        gave_up = patterns.get_by_role("row", name="gave up: never found the source").first
        await expect(gave_up).to_contain_text("1 solved")
        await expect(gave_up).to_contain_text("1 unchanged")
        await visit.is_well_made()
        await visit.page.emulate_media(color_scheme="dark")
        await visit.is_well_made()
        await unread.get_by_text("Look").click()
        await unread.get_by_role("link").first.click()
        await expect(visit.text("✗ no")).to_be_visible()
        await visit.page.go_back()
        await visit.link("solved").click()
        await expect(visit.text("✓ yes")).to_be_visible()


async def test_a_runs_failures_are_those_of_an_iteration(visit: Visit, data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: [True, False, False], 1: [True, True, False], 2: [True, True, True]})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await visit.link("Failures").click()
        await expect(visit.text("iteration 0: 1 of 3 tasks solved → iteration 2: 3 of 3 tasks solved")).to_be_visible()
        await visit.page.get_by_label("After iteration").select_option("1")
        await expect(visit.text("iteration 0: 1 of 3 tasks solved → iteration 1: 2 of 3 tasks solved")).to_be_visible()
        await visit.is_well_made()
