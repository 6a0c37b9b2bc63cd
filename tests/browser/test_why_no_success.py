"""Why a rollout is not a success stands where its verdict stands: on its page, in the group view and in the film."""

from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long

SHOWN = "no source cited; expected <b>pebro</b>⟨U+202E⟩"


async def test_the_clause_is_shown_as_text(visit: Visit, data_dir: Path, database_url: str) -> None:
    page = visit.page
    loop = ScriptedLoop(held_out={0: [False, True], 1: [False, True], 2: [True, True]})
    async with served(settings_for(data_dir, database_url), loop) as client:
        body = {"iterations": 2, "model": {"name": "explained"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        listed = (await client.get(f"/runs/{run_id}/trajectories", params={"kind": "train"})).json()["items"]
        failed = next(rollout for rollout in listed if not rollout["success"])
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}/trajectories/{failed['id']}")
        await expect(page.locator(".why-no-success")).to_have_text(SHOWN)
        assert await visit.inaccessible() == []
        group = urlencode({"iteration": failed["iteration"], "scenario": failed["scenario_id"]})
        await visit.go(f"/runs/{run_id}/group?{group}")
        await expect(page.locator(".why-no-success").first).to_have_text(SHOWN)
        await visit.go(f"/runs/{run_id}/held-out?{urlencode({'scenario': 'validation:0'})}")
        await expect(page.locator(".frame .why-no-success").first).to_have_text(SHOWN)
        assert await page.locator(".frame.right .why-no-success").count() == 0
        assert await visit.inaccessible() == []
        assert visit.problems == []
