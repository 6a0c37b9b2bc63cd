"""An operator gives the machine a price in the dashboard, and the form of a run says which judges cannot be used."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_an_operator_gives_the_machine_a_price(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await visit.open(str(client.base_url).rstrip("/"))
        await visit.link("settings").click()  # of the list without runs
        await expect(visit.text(f"LEARNLOOP_DATA_DIR={data_dir}")).to_be_visible()
        await visit.is_well_made()
        price = visit.page.get_by_label("US dollars an hour")
        await price.fill("-1")
        await visit.button("Save").click()
        await expect(price).to_have_attribute("aria-invalid", "true")
        await price.fill("1.5")
        await visit.button("Save").click()
        await expect(visit.text("Runs that begin now cost $1.50 an hour.")).to_be_visible()
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        assert (await run_with(client, run_id, "completed"))["cost"]["machine_price_per_hour"] == 1.5


async def test_the_form_offers_judges_that_can_be_used(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await visit.open(str(client.base_url).rstrip("/"), "/start")
        offered = await visit.page.get_by_label("Judge", exact=True).locator("option").all_inner_texts()
        assert "reference" in offered
        assert "ruler" not in offered
        await visit.text("Judges that cannot be used here yet: blend, correctness, ruler").click()
        await expect(visit.text("ruler needs a language model")).to_be_visible()
