"""A run over a team's own agent is started by the form: what it lacks is said at the field that lacks it."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for
from tests.integration.app.worked_sessions import worked

pytestmark = pytest.mark.long


async def _says(page: Page, field: str, error: str) -> None:
    """Start the run, which is refused."""
    await page.get_by_role("button", name="Start the run").click()
    input_field = page.get_by_label(field, exact=True)
    await expect(input_field).to_have_attribute("aria-invalid", "true")
    await expect(page.locator(f"#{await input_field.get_attribute('aria-describedby')}")).to_contain_text(error)


async def test_a_run_over_an_own_agent(visit: Visit, data_dir: Path, database_url: str) -> None:
    engine = make_engine(parse_url(database_url))
    async with served(
        settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8"), ScriptedLoop()
    ) as client:
        for number in range(3):
            await worked(make_database(engine), f"Question {number}?", 0.25)
        await visit.open(str(client.base_url).rstrip("/"), "/start")
        page = visit.page
        await page.get_by_label("Environment", exact=True).select_option("agent")
        await expect(page.get_by_text("learnloop-agent run -- CMD").first).to_be_visible()
        await _says(page, "Set of tasks", "there are no scenarios")
        runner = page.get_by_label("How tasks reach your agent")
        await runner.select_option("tasks are posted to its URL")
        await _says(page, "URL of your agent", "needs a url")
        await page.get_by_label("URL of your agent").fill("http://127.0.0.1:1/tasks")
        await _says(page, "URL of your agent", "port 1 is not allowed")
        await page.get_by_label("URL of your agent").fill("http://127.0.0.1:8000/tasks")
        await page.get_by_label("Signing secret").fill("secret")
        await _says(page, "Signing secret", "whsec_")
        await runner.select_option("a Python function of the worker")
        await page.get_by_label("Function", exact=True).fill("nowhere")
        await _says(page, "Function", "package.module:function")
        await runner.select_option("it claims its tasks")
        await page.get_by_label("Tasks from").select_option("a URL")
        await _says(page, "URL of the tasks", "cannot be fetched")
        await page.get_by_label("Tasks from").select_option("sessions in production")
        await page.get_by_label("Opened since").fill("yesterday")
        await _says(page, "Opened since", "datetime")
        await page.get_by_label("Opened since").fill("")
        await page.get_by_label("Reward below").fill("0.1")
        await page.get_by_role("button", name="Start the run").click()
        await expect(page.get_by_role("group").get_by_text("finds 0 sessions")).to_be_visible()
        assert await visit.inaccessible() == []
        await page.get_by_label("Reward below").fill("0.5")
        await _says(page, "Judge", "needs a language model")
        await page.get_by_label("Judge", exact=True).select_option("reported")
        await page.get_by_role("button", name="Start the run").click()
        warnings = page.locator(".notice.warn").filter(has_text="about the request")
        await expect(warnings).to_contain_text("3 scenarios from 3 sessions")
        await expect(warnings).to_contain_text("Unless your agent works with these")
    await engine.dispose()
