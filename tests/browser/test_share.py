"""The menu of a run's page that shares it, and the report as its reader sees it."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from learnloop_service.app.reports.page import page
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for
from tests.unit.app.reports.documents import report

pytestmark = pytest.mark.long


async def test_a_run_is_shared_from_its_page(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 1, "model": {"name": "shared"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        menu = visit.page.locator("details.menu")
        await menu.locator("summary").click()
        assert await visit.inaccessible() == []
        async with visit.page.expect_download() as caught:
            await visit.button("Download the report").click()
        downloaded = await caught.value
        assert downloaded.suggested_filename == f"report-{run_id}.html"
        content = Path(await downloaded.path()).read_text()
        assert run_id in content
        async with visit.page.expect_download() as caught:
            await visit.link("evaluations").click()
        assert (await caught.value).suggested_filename == "evaluations.csv"
        await visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit.button("Copy link to this view").click()
        await expect(visit.button("Copied")).to_be_visible()
        assert await visit.page.evaluate("() => navigator.clipboard.readText()") == visit.page.url
        await visit.page.keyboard.press("Escape")
        await expect(menu).not_to_have_attribute("open", re.compile(".*"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_a_report_is_read_offline(visit: Visit, tmp_path: Path, scheme: str, width: int) -> None:
    (file := tmp_path / "report.html").write_text(page(report()), encoding="utf-8")
    await visit.page.set_viewport_size({"width": width, "height": 900})
    await visit.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await visit.page.goto(file.as_uri())
    await expect(visit.page.locator("#browser")).to_contain_text("all agree")
    await expect(visit.page.locator("h1")).to_contain_text("of held-out tasks right")
    assert await visit.page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert await visit.inaccessible() == []


async def test_the_reader_s_browser_notices_a_changed_figure(visit: Visit, tmp_path: Path) -> None:
    document = report()
    document["iterations"]["items"][2]["rewards"]["mean"] = 1.5
    (file := tmp_path / "report.html").write_text(page(document), encoding="utf-8")
    await visit.page.goto(file.as_uri())
    await expect(visit.page.locator("#browser.differ")).to_contain_text("iteration 2: reward mean")
    await expect(visit.page.locator("#found.differ")).to_contain_text("iteration 2: reward mean")
