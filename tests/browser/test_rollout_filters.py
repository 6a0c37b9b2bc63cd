"""A run's rollouts are found by filters in the address, and those that are alike are shown once."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect
from sqlalchemy import text

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.rewritten_rollouts import rewrite
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_rollouts_are_found_by_filters_in_the_address(visit: Visit, data_dir: Path, database_url: str) -> None:
    page = visit.page
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 2, "model": {"name": "searched"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await rewrite(database_url, run_id)
        base, path = str(client.base_url).rstrip("/"), f"/runs/{run_id}/trajectories"
        await visit.open(base, path)
        await expect(
            page.get_by_role("img", name=re.compile("^How rollouts end.*gave up: from 0% to 50%"))
        ).to_be_visible()
        await expect(page.get_by_role("img", name=re.compile("^What rewards are made of"))).to_be_visible()
        table = page.get_by_role("table", name="Trajectories, the best reward first")
        await visit.button("All").click()
        await expect(table.get_by_role("row")).to_have_count(5)
        await page.get_by_label("Ended").select_option("gave up")
        await expect(table.get_by_role("row")).to_have_count(2)
        await expect(page).to_have_url(re.compile(r"iteration=all&end=gave_up$"))
        await page.get_by_label("Success").select_option("✗ no")
        await expect(visit.text("No rollout is like that")).to_be_visible()
        await visit.button("Clear filters").click()
        await page.get_by_label("Text").fill("KICKOFF")
        await page.get_by_label("Text").press("Enter")
        await expect(table.get_by_role("row")).to_have_count(2)
        await visit.is_well_made()
        await visit.go(f"{path}?iteration=all&part=turns&tool=search_inbox")  # as a link that somebody was sent
        await expect(table.get_by_role("row")).to_have_count(2)
        await expect(page.get_by_label("Called tool")).to_have_value("search_inbox")
        await expect(page.get_by_label("Reward part")).to_have_value("turns")


async def test_rollouts_of_a_group_that_are_alike_are_shown_once(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    engine = make_engine(parse_url(database_url))
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}/trajectories")
        await expect(visit.page.locator(".group .rollouts li")).to_have_count(2)
        async with make_database(engine).begin() as tx:
            await tx.execute(text("UPDATE trajectory SET reward = 1, advantage = 0, success = true"))
        await visit.page.reload()
        await expect(visit.page.locator(".group .rollouts li")).to_have_count(1)
        await expect(visit.page.locator(".group .rollouts li")).to_contain_text("2 \N{MULTIPLICATION SIGN}")
    await engine.dispose()


async def test_a_rollout_is_commented_on_and_judged_again(visit: Visit, data_dir: Path, database_url: str) -> None:
    page = visit.page
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        listed = await client.get(f"/runs/{run_id}/trajectories", params={"kind": "train"})
        rollout, other = listed.raise_for_status().json()["items"]
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}/trajectories/{rollout['id']}")
        await page.get_by_label("Comment").fill("It never reads the email.")
        await visit.button("Bad").click()
        opinions = page.locator(".opinions li")
        await expect(opinions).to_have_count(1)
        await expect(opinions).to_contain_text(re.compile("^Bad.*It never reads the email.", re.DOTALL))
        await expect(page.get_by_label("Comment")).to_have_value("")
        await page.get_by_text("What the judge model is asked").click()
        await expect(visit.text("Nothing: its judge needs no language model here.")).to_be_visible()
        assert await visit.inaccessible() == []
        await visit.link("Judge again").click()
        await expect(page.get_by_label("From iteration")).to_have_value("1")
        await expect(page.get_by_label("To iteration")).to_have_value("1")
        await visit.go(f"/runs/{run_id}/trajectories/{other['id']}")
        await expect(page.get_by_label("Comment")).to_be_visible()
        await expect(opinions).to_have_count(0)
