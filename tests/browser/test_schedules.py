"""The pages of schedules: made by the form, run, paused and deleted by the buttons, with what came of each due time."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from learnloop_service.app.db.database import Database
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.conftest import database
from tests.integration.app.scheduled import sessions_of
from tests.integration.app.served import run_with, served, settings_for

__all__ = ["database"]

pytestmark = pytest.mark.long

_FORM = {
    "Name": "nightly",
    "New tasks at least": "50",
    "Tasks to draw": "200",
    "Iterations": "2",
    "Scenarios per iteration": "2",
    "Rollouts per scenario": "1",
}


async def test_a_schedule_is_made_run_paused_and_deleted(
    visit: Visit, data_dir: Path, database_url: str, database: Database
) -> None:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with served(settings, ScriptedLoop(), ScriptedBackend()) as client:
        page = visit.page
        await visit.open(str(client.base_url).rstrip("/"))
        await visit.link("Schedules").click()
        await expect(page).to_have_title("Schedules · Learnloop")
        await expect(visit.text("No schedule yet")).to_be_visible()
        await _make(visit)
        [schedule] = (await client.get("/schedules")).raise_for_status().json()["items"]
        assert (schedule["promoted_name"], schedule["then"], schedule["least_new_tasks"]) == (
            "learnloop/live",
            "nothing",
            50,
        )
        assert schedule["run"]["source"] == {"sessions": {"model": "learnloop/live", "limit": 200}}
        assert schedule["run"]["environment"]["config"]["runner"] == {"python": "tests.fakes.own_agents:replaying"}
        assert (schedule["run"]["iterations"], schedule["run"]["judge"]) == (2, {"name": "reported"})

        # With nothing to learn from there is no run, and the page says why.
        await visit.button("Run now").click()
        await expect(page.locator("main > .news")).to_contain_text("0 consented tasks, and least_new_tasks is 50")
        row = page.get_by_role("region", name="Schedules, newest first").get_by_role("row").nth(1)
        await expect(row).to_contain_text("skipped")

        await sessions_of(database, 70)
        await visit.button("Run now").click()
        await page.locator("main > .news").get_by_role("link", name="a run").click()
        await expect(page).to_have_url(re.compile("/ui/runs/"))
        run_id = page.url.rsplit("/", 1)[1]
        run = await run_with(client, run_id, "completed")
        await _read_what_came_of_it(visit, schedule["id"], run["model"]["name"], run_id)
        await _pause_and_delete(visit)
        assert (await client.get("/schedules")).json()["items"] == []


async def _is_well_made(visit: Visit) -> None:
    for scheme in ("dark", "light"):
        await visit.page.emulate_media(color_scheme=scheme)
        await visit.is_well_made((1440, 1280, 390))


async def _make(visit: Visit) -> None:
    page = visit.page
    await visit.text("New schedule").click()
    for title, value in _FORM.items():
        await page.get_by_label(title, exact=True).fill(value)
    await page.get_by_label("When", exact=True).fill("every night")
    await page.get_by_label("How tasks reach your agent").select_option("a Python function of the worker")
    await page.get_by_label("Function", exact=True).fill("tests.fakes.own_agents:replaying")
    await page.get_by_label("Judge", exact=True).select_option("reported")
    await page.get_by_label("After a run").select_option("nothing")
    await visit.button("Create").click()
    when = page.get_by_label("When", exact=True)
    rollouts = page.get_by_label("Rollouts per scenario", exact=True)
    for field in (when, rollouts):  # faults of the schedule and of its run, at their fields
        await expect(field).to_have_attribute("aria-invalid", "true")
    await when.fill("0 2 * * *")
    await rollouts.fill("2")
    await visit.button("Create").click()
    name = page.get_by_label("Promoted name", exact=True)
    await expect(name).to_have_attribute("aria-invalid", "true")
    await _is_well_made(visit)
    await name.fill("learnloop/live")
    await visit.button("Create").click()
    await expect(page.get_by_role("status").filter(has_text="nightly runs next on")).to_be_visible()
    row = page.get_by_role("region", name="Schedules, newest first").get_by_role("row").nth(1)
    await expect(row).to_contain_text("learnloop/live")
    await expect(row).to_contain_text("0 2 * * * in UTC")
    await expect(row).to_contain_text("not due yet")


async def _read_what_came_of_it(visit: Visit, schedule_id: str, model: str, run_id: str) -> None:
    page = visit.page
    await visit.go("/schedules")
    row = page.get_by_role("region", name="Schedules, newest first").get_by_role("row").nth(1)
    await expect(row.get_by_role("link", name=model)).to_have_attribute("href", f"ui/runs/{run_id}")
    await expect(row).to_contain_text(re.compile("completed.*(learned|no change|got worse|too early)"))
    await _is_well_made(visit)
    await row.get_by_role("link", name="nightly", exact=True).click()
    await expect(page).to_have_url(re.compile(f"/ui/schedules/{schedule_id}$"))
    due_times = page.get_by_role("region", name="Due times, newest first").get_by_role("row")
    await expect(due_times).to_have_count(3)
    await expect(due_times.nth(1).get_by_role("link", name=model)).to_be_visible()
    await expect(due_times.nth(1)).to_contain_text(re.compile(r"\d+ tasks of \d+ users"))
    await expect(due_times.nth(2)).to_contain_text("least_new_tasks is 50")
    await expect(visit.text("the base model while nothing has that name")).to_be_visible()
    await _is_well_made(visit)


async def _pause_and_delete(visit: Visit) -> None:
    page, heading = visit.page, visit.page.get_by_role("heading", level=1)
    await visit.button("Pause").click()
    await expect(heading).to_contain_text("paused")
    await expect(visit.button("Run now")).to_have_count(0)
    await visit.button("Resume").click()
    await expect(heading).not_to_contain_text("paused")
    await visit.confirm("Delete")
    await expect(page).to_have_url(re.compile("/ui/schedules$"))
    await expect(visit.text("No schedule yet")).to_be_visible()
