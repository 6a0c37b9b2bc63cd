"""A run that is watched from another tab: its title says how it gets on, and a notice says that it ended."""

import threading
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long

_RECORDED = """
globalThis.asked = 0;
globalThis.told = [];
globalThis.Notification = class {
  static async requestPermission() { asked += 1; return "granted"; }
  constructor(title, { body }) { told.push([title, body]); }
};
"""
"""Records notices in place of Chromium's own, which a headless one does not show."""


async def test_the_title_and_a_notice_say_how_a_run_gets_on(visit: Visit, data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: [False] * 24, 2: [True] * 24}, gates={2: threading.Event()})
    await visit.page.add_init_script(_RECORDED)
    async with served(settings_for(data_dir, database_url), loop) as client:
        body = {"iterations": 2, "model": {"name": "clerk"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await until(loop.has_entered(2).is_set)
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.page).to_have_title("0% · 1/2 · learnloop/clerk · Learnloop")
        assert await visit.page.evaluate("asked") == 0
        await visit.button("Notify me").click()
        await expect(visit.button("Notify me")).to_have_attribute("aria-pressed", "true")
        assert await visit.page.evaluate("[asked, told]") == [1, []]
        loop.gates[2].set()
        await expect(visit.page).to_have_title("completed · 100% · learnloop/clerk · Learnloop")
        [[title, text]] = await visit.page.evaluate("told")
        assert title == "learnloop/clerk: completed"
        assert text.startswith("Learned: held-out success rose from 0% to 100%")
        await expect(visit.button("Notify me")).to_have_count(0)
        await visit.link("Runs").first.click()
        await expect(visit.page).to_have_title("Runs · Learnloop")
