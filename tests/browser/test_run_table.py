"""The table of runs: sorted, filtered, its columns chosen, seeds unfolded, runs named and starred."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import select

from learnloop_service.app.db.tables import LedgerEntry, Run
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.many_runs import insert_runs
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database

pytestmark = pytest.mark.long


@pytest_asyncio.fixture(loop_scope="session")
async def base(data_dir: Path, database_url: str) -> AsyncIterator[str]:
    await insert_runs(database_url)
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        yield str(client.base_url).rstrip("/")


async def test_the_table_is_sorted_filtered_and_unfolded_and_the_address_says_how(visit: Visit, base: str) -> None:
    page = visit.page
    await visit.open(base)
    rows = page.locator(".run")
    await expect(rows).to_have_count(4)
    several = page.locator(".run.several")
    await expect(several).to_contain_text("3 runs")
    await expect(several).to_contain_text("25% → 88%")
    await expect(several).to_contain_text("+62 ± 12")
    points = page.get_by_role("columnheader", name="Points")
    await points.get_by_role("button").click()
    await expect(points).to_have_attribute("aria-sort", "descending")
    await expect(rows.last).to_contain_text("early-5")
    await points.get_by_role("button").click()
    await expect(page).to_have_url(f"{base}/?sort=gain&ascending=true")
    await expect(rows.first).to_contain_text("fell-4")
    await expect(points.get_by_role("button")).to_be_focused()
    await page.reload()
    await expect(points).to_have_attribute("aria-sort", "ascending")
    await several.get_by_role("button", name="3 runs like").click()
    await expect(page.locator(".run.member .run-name")).to_have_text(["steep-2", "steep-1", "steep-0"])
    assert await visit.inaccessible() == []
    for width in (390, 820, 1440):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    await visit.button("Seeds together").click()
    await expect(rows).to_have_count(6)
    await visit.text("Columns").click()
    await page.get_by_label("Learning rate").check()
    await page.get_by_label("Status").last.uncheck()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("columnheader", name="Learning rate")).to_be_visible()
    await expect(page.get_by_role("columnheader", name="Status")).to_have_count(0)
    await page.get_by_label("Search").fill("steep-1")
    await expect(rows).to_have_count(1)
    await expect(page).to_have_url(re.compile("columns=.*learning_rate.*search=steep-1|search=steep-1.*learning_rate"))


async def test_settings_that_differ_are_columns_and_others_can_be_added(visit: Visit, base: str) -> None:
    page = visit.page
    await visit.open(base)
    heads = page.get_by_role("columnheader")
    await expect(heads.nth(1)).to_contain_text("Learning rate")  # it differs; all else is the same, seeds are folded
    await expect(heads.nth(2)).to_contain_text("Note")
    await expect(heads.nth(3)).to_contain_text("Verdict")
    await visit.button("Seeds together").click()
    await expect(heads.nth(2)).to_contain_text("Seed")
    await visit.text("Columns").click()
    await page.get_by_label("Another setting").fill("evaluation.samples")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("columnheader", name="Evaluation samples")).to_be_visible()
    await page.get_by_label("Settings that differ").uncheck()
    await expect(page.get_by_role("columnheader", name="Learning rate")).to_have_count(0)
    await page.reload()
    cells = page.locator(".run td[data-title='Evaluation samples']")
    await expect(cells).to_have_text(["2"] * 6)
    await visit.text("Columns").click()
    await page.get_by_label("Evaluation samples").click()
    await expect(page.get_by_role("columnheader", name="Evaluation samples")).to_have_count(0)


async def test_columns_that_do_not_fit_are_named_and_the_most_important_ones_stay(
    visit: Visit, base: str, database_url: str
) -> None:
    async with opened_database(database_url) as database, database.begin() as tx:
        for number, run in enumerate((await tx.execute(select(Run))).scalars()):
            run.request = run.request | {"max_turns": 4 + number, "temperature": 0.5 + number / 10}
            spent = {"iteration": 0, "phase": "rollout", "seconds": 1.0, "prompt_tokens": 1, "completion_tokens": 1}
            tx.add(LedgerEntry(run_id=run.id, usd=0.25, wasted=False, **spent))
    page = visit.page
    await page.set_viewport_size({"width": 1280, "height": 720})
    await visit.open(base)
    await expect(visit.text(re.compile("^Left out for want of room: Reward, Tokens"))).to_be_visible()
    table = page.get_by_role("region", name="Runs")
    await expect(table).to_have_attribute("data-more", "")
    for name in ("Run", "Learning rate", "Status", "Held out", "Points", "Cost"):
        await expect(page.get_by_role("columnheader", name=name, exact=True)).to_be_in_viewport(ratio=1)
    reward = page.get_by_role("columnheader", name="Reward")
    await expect(reward).to_have_count(0)
    await visit.is_well_made((1440, 1280, 390))
    await visit.button("Show them").click()
    await expect(reward).to_have_count(1)
    await expect(table).to_have_attribute("data-more", "right")
    await visit.button("Fit the page").click()
    await expect(reward).to_have_count(0)
    await page.set_viewport_size({"width": 2400, "height": 900})
    await expect(reward).to_have_count(1)
    await expect(page.get_by_text("Left out for want of room")).to_have_count(0)


async def test_the_table_says_what_the_runs_of_a_period_have_cost(visit: Visit, base: str, database_url: str) -> None:
    async with opened_database(database_url) as database, database.begin() as tx:
        for number, run in enumerate((await tx.execute(select(Run).order_by(Run.id))).scalars()):
            spent = {"iteration": 0, "phase": "rollout", "seconds": 1.0, "prompt_tokens": 1, "completion_tokens": 1}
            tx.add(LedgerEntry(run_id=run.id, usd=0.25, wasted=False, **spent))
            run.created_at = datetime.now(UTC) - timedelta(days=number)
    page = visit.page
    await visit.open(base)
    await expect(visit.text("6 runs, $1.50 in all")).to_be_visible()
    await page.get_by_label("Requested").select_option("last week")
    await expect(page).to_have_url(f"{base}/?days=7")
    await page.get_by_label("Requested").select_option("last day")
    await expect(visit.text("1 run, $0.25 in all")).to_be_visible()
    await expect(page.locator(".run")).to_have_count(1)
    await page.reload()
    await expect(page.get_by_label("Requested")).to_have_value("1")
    await expect(visit.text("1 run, $0.25 in all")).to_be_visible()


async def test_seeds_are_starred_and_compared_as_a_whole(visit: Visit, base: str) -> None:
    page = visit.page
    await visit.open(base)
    several = page.locator(".run.several")
    star = several.get_by_role("button", name="Star all like")
    await star.click()
    await expect(star).to_have_attribute("aria-pressed", "true")
    await several.get_by_role("button", name="3 runs like").click()
    stars = page.locator(".run.member").get_by_role("button", name=re.compile("^Star "))
    await expect(stars.first).to_have_attribute("aria-pressed", "true")
    await stars.first.click()
    await expect(star).to_have_attribute("aria-pressed", "false")
    await page.get_by_role("checkbox", name="Compare all like").check()
    await page.get_by_role("checkbox", name="Compare learnloop/fell-4").check()
    await visit.button("Compare 2 rows").click()
    table = page.get_by_role("region", name="Figures and settings")
    await expect(table.get_by_role("columnheader")).to_have_text(
        ["Figure", "learnloop/steep-2, 3 runs", "learnloop/fell-4"]
    )
    await expect(table.get_by_role("row", name="Verdict")).to_contain_text("+62 ± 12 points")
    chart = page.get_by_role("img", name="Held-out success")
    await expect(chart.locator(".area")).to_have_count(1)  # from the worst seed to the best
    await visit.is_well_made()


async def test_the_baseline_is_a_thin_line_in_the_charts_of_other_runs(visit: Visit, base: str) -> None:
    page = visit.page
    await visit.open(base)
    for name in ("flat-3", "early-5"):  # there is one at a time
        await page.get_by_role("button", name=f"Edit learnloop/{name}").click()
        await page.get_by_label("Baseline").check()
        await visit.button("Save").click()
        await expect(page.locator(".run", has_text=name).locator(".tag")).to_have_text("baseline")
        await expect(page.locator(".run .tag")).to_have_count(1)
    await page.get_by_role("button", name="Edit learnloop/flat-3").click()
    await page.get_by_label("Baseline").check()
    await visit.button("Save").click()
    await expect(page.locator(".run", has_text="flat-3").locator(".tag")).to_have_text("baseline")
    await visit.link("fell-4").click()
    chart = page.locator("figure.chart", has_text="Success on held-out scenarios")
    await expect(chart.locator(".line.thin")).to_have_count(1)
    await expect(chart.locator(".legend")).to_contain_text("baseline learnloop/flat-3")
    await visit.is_well_made()
    await visit.open(base)
    await visit.link("flat-3").click()
    await visit.settled()
    await expect(page.locator("figure.chart").first).to_be_visible()
    await expect(page.locator(".line.thin")).to_have_count(0)


async def test_a_run_is_named_tagged_and_starred_in_the_table_and_on_its_page(visit: Visit, base: str) -> None:
    page = visit.page
    await visit.open(base)
    await page.get_by_role("button", name="Edit learnloop/flat-3").click()
    await page.get_by_label("Name", exact=True).fill("a lower rate")
    await page.get_by_label("Tags", exact=True).fill("paper, lr")
    for _ in range(2):  # the table is read and drawn again below the open form; the second request follows the drawing
        await page.wait_for_event("requestfinished", lambda request: "/runs?" in request.url)
    await expect(page.get_by_label("Tags", exact=True)).to_have_value("paper, lr")
    assert await visit.inaccessible() == []
    await visit.button("Save").click()
    row = page.locator(".run", has_text="a lower rate")
    await expect(row.locator(".tag")).to_have_text(["paper", "lr"])
    await row.get_by_role("button", name="Star a lower rate").click()
    await expect(row.get_by_role("button", name="Star a lower rate")).to_have_attribute("aria-pressed", "true")
    await visit.button("★ Starred").click()
    await expect(page.locator(".run")).to_have_count(1)
    await page.get_by_label("Tag", exact=True).fill("other")
    await page.keyboard.press("Enter")
    await expect(visit.text("No run fits these filters")).to_be_visible()
    await visit.open(base)
    await visit.link("a lower rate").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("a lower rate")
    await page.get_by_role("button", name="Edit a lower rate").click()
    await page.get_by_label("Name", exact=True).fill("")
    await page.get_by_label("Notes", exact=True).fill("Too short.")
    await visit.button("Save").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("learnloop/flat-3")
    await expect(visit.text("Too short.")).to_be_visible()
    assert await visit.inaccessible() == []
