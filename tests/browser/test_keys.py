"""Keys for the frequent moves, which do nothing while something is typed and can be turned off."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_keys_move_between_rows_rollouts_and_the_search(visit: Visit, data_dir: Path, database_url: str) -> None:
    page, press = visit.page, visit.page.keyboard.press
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for name, rate in (("first", 0.001), ("second", 0.002)):
            body = {"iterations": 1, "model": {"name": name}, "learning_rate": rate}
            run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
            await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"))
        await expect(page.locator(".run")).to_have_count(2)
        await press("j")
        await expect(visit.link("second")).to_be_focused()
        await press("ArrowDown")
        await expect(visit.link("first")).to_be_focused()
        await press("k")
        await expect(visit.link("second")).to_be_focused()
        await press("/")
        await expect(page.get_by_label("Search")).to_be_focused()
        await page.keyboard.type("j/?k")
        await expect(page.get_by_label("Search")).to_have_value("j/?k")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await visit.go(f"/runs/{run_id}/trajectories?iteration=1")
        await page.locator(".rollouts a").first.wait_for()
        await press("j")
        await press("Enter")
        await expect(visit.text("1 of 2 by reward")).to_be_visible()
        await press("ArrowRight")
        await expect(visit.text("2 of 2 by reward")).to_be_visible()
        await press("k")
        await expect(visit.text("1 of 2 by reward")).to_be_visible()
        await press("?")
        keys = page.get_by_role("dialog", name="Keyboard shortcuts")
        await expect(keys.get_by_text("Search the runs")).to_be_visible()
        assert await visit.inaccessible() == []
        await keys.get_by_label("Use these shortcuts").uncheck()
        await press("Escape")
        await expect(keys).to_have_count(0)
        await press("?")
        await press("j")
        await expect(visit.text("1 of 2 by reward")).to_be_visible()
        await expect(keys).to_have_count(0)
        await visit.page.get_by_role("button", name="Shortcuts").click()
        await expect(keys.get_by_label("Use these shortcuts")).not_to_be_checked()
