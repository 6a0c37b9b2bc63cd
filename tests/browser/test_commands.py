"""What can be done with a run is done by its buttons, and the page shows what came of it."""

import threading
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long


async def test_a_run_is_paused_resumed_cancelled_forked_and_deleted(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    loop = ScriptedLoop(gates={2: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        body = {"iterations": 3, "model": {"name": "clerk"}, "learning_rate": 0.002}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        page, heading = visit.page, visit.page.get_by_role("heading", level=1)
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.text("1 of 3 iterations")).to_be_visible()

        await visit.button("Pause").click()
        await expect(heading).to_contain_text("paused")
        await visit.button("Resume").click()
        await expect(heading).to_contain_text("running")
        await _think_again(visit)
        await visit.confirm("Cancel")
        await expect(heading).to_contain_text("cancelled")

        await visit.link("Fork").click()
        await expect(page.get_by_label("Learning rate", exact=True)).to_have_value("0.002")
        await page.get_by_label("Iterations", exact=True).fill("1")
        await visit.button("Fork the run").click()
        await expect(visit.text("forked from")).to_be_visible()
        await expect(heading).to_contain_text("completed")

        await visit.confirm("Delete")
        await expect(page.locator(".run")).to_have_count(1)
        await page.get_by_label("Search").fill("nothing like it")
        await expect(visit.text("No run fits these filters")).to_be_visible()


async def _think_again(visit: Visit) -> None:
    """Whoever does not mean it, by mouse or by keyboard, has changed nothing and is where they were."""
    question = visit.page.get_by_role("alertdialog", name="Cancel this run for good?")
    back = question.get_by_role("button", name="Go back")
    for is_by_keyboard in (False, True):
        await visit.button("Cancel").click()
        await expect(back).to_be_focused()
        assert await visit.inaccessible() == []
        if is_by_keyboard:
            await visit.page.keyboard.press("Escape")
        else:
            await back.click()
        await expect(question).to_have_count(0)
        await expect(visit.button("Cancel")).to_be_focused()
    await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("running")
