"""Runs are compared by the held-out questions that one answers and the other does not."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.compared_runs import compared_runs
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long


async def test_questions_won_and_lost_lead_to_their_rollouts(visit: Visit, data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop()
    async with served(settings_for(data_dir, database_url), loop) as client:
        one, other = await compared_runs(client, loop)
        await visit.open(str(client.base_url).rstrip("/"), f"/compare?runs={one},{other}")
        kind = visit.page.locator("details.kind summary")
        await expect(kind).to_contain_text("8 validation scenarios, sampled")
        await expect(kind).to_contain_text("B wins 1 and loses 1, 0 points")
        await expect(kind).to_contain_text("no difference shown")
        won = visit.page.get_by_role("region", name="Won by B")
        await expect(won.get_by_role("rowheader")).to_have_text(["what 6?"])
        assert await visit.inaccessible() == []
        await visit.link("0%: a rollout by learnloop/one").first.click()
        await expect(visit.text("✗ no")).to_be_visible()
        await visit.page.go_back()
        await visit.link("100%: a rollout by learnloop/other").click()
        await expect(visit.text("✓ yes")).to_be_visible()
