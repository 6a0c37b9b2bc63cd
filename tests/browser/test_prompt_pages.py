"""Prompts in the dashboard: the list, one with what differs from another, and the pages that name one."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.failing_models import MODELS, compared, failing_models
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with

pytestmark = pytest.mark.long

FIRST = {"system": "{original}\nBe kind.\n\nQuote the sentence.\u202e", "tool:read_email": "Open a mail."}
SECOND = {"system": "{original}\nBe very kind.\n\nQuote the sentence.\u202e\nStop.", "tool:search_inbox": "Search it."}


async def test_a_prompt_is_compared_with_its_version_before(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with failing_models(data_dir, database_url) as client:
        base = str(client.base_url).rstrip("/")
        await visit.open(base, "/prompts")
        await expect(visit.text("learnloop prompts upload NAME FILE")).to_be_visible()
        for parts in (FIRST, SECOND):
            await client.post("/prompts", params={"name": "mail"}, json={"parts": parts})
        await compared(client, models=[{**MODELS[0], "prompt": "mail@1"}])
        await visit.open(base, "/prompts")
        rows = visit.page.get_by_role("table", name="Prompts, newest first").get_by_role("row")
        await expect(rows.filter(has_text="mail@1")).to_contain_text("1 evaluation")
        await expect(rows.filter(has_text="mail@2")).to_contain_text("nothing")
        await visit.is_well_made()
        await visit.link("mail@2").click()
        diff = visit.page.locator(".diff")
        await expect(diff.locator("ins")).to_have_text(["very ", "Stop."])
        await expect(diff.locator("del")).to_have_count(0)
        await expect(diff).to_contain_text("⟨U+202E⟩")
        news = {"system": "changed", "tool:read_email": "no longer replaced", "tool:search_inbox": "new"}
        for part, word in news.items():
            await expect(visit.page.get_by_role("heading", name=f"{part} {word}")).to_be_visible()
        await visit.is_well_made()
        await visit.page.emulate_media(color_scheme="dark")
        await visit.is_well_made()
        line = diff.get_by_text("Quote the sentence.", exact=False).filter(visible=True)
        await expect(line).to_have_count(2)
        await visit.page.set_viewport_size({"width": 390, "height": 900})
        await expect(line).to_have_count(1)
        await visit.page.get_by_label("Compare with").select_option("nothing")
        await expect(diff).to_have_count(0)
        await visit.confirm("Delete")
        await expect(visit.link("mail@2")).to_have_count(0)
        await expect(visit.link("mail@1")).to_be_visible()


async def test_evaluations_runs_and_rollouts_lead_to_their_prompt(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with failing_models(data_dir, database_url) as client:
        base = str(client.base_url).rstrip("/")
        await client.post("/prompts", params={"name": "mail"}, json={"parts": {"system": "{original}\nBe kind."}})
        id = await compared(client, models=[{**MODELS[0], "prompt": "mail@1"}, {**MODELS[1], "prompt": None}])
        await ended(client, id)
        rollouts = (await client.get(f"/evaluations/{id}/trajectories")).json()["items"]
        run = await client.post("/learn-loop", json={"iterations": 1, "prompt": "mail"})
        run_id = run.raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        [rollout] = [each["id"] for each in rollouts if each["prompt_sha256"]][:1]
        sha256 = (await client.get("/prompts")).json()["items"][0]["sha256"]
        for place, name in (
            (f"/evaluations/{id}", "mail@1"),
            (f"/runs/{run_id}/request", "mail@1"),
            (f"/trajectories/{rollout}", sha256[:12]),
        ):
            await visit.open(base, place)
            await visit.page.get_by_role("link", name=name, exact=True).click()
            await expect(visit.page.get_by_role("heading", name="mail@1")).to_be_visible()
        await expect(visit.text(f"run …{run_id[-6:]}")).to_be_visible()
        await visit.open(base, f"/runs/{run_id}/request")
        await expect(visit.page.locator("main .code").last).to_contain_text(f'"prompt": "{sha256}"')
