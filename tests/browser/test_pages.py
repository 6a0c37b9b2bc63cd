"""Every page, with hostile content in every text: it stays text, and every page can be used by everybody."""

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import URL

from tests.browser.hostile_rows import EVIL, LONG, Ids, make_rows
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED, database
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long

_ID, _SCENARIO = quote(Ids.trajectory, safe=""), quote(EVIL, safe="")
_RUN = f"/runs/{Ids.run}"
HOSTILE = (
    "/",
    f"/compare?runs={Ids.run}",
    _RUN,
    f"{_RUN}/trajectories",
    f"{_RUN}/trajectories?iteration=1",
    f"{_RUN}/trajectories?kind=evaluation",
    f"{_RUN}/trajectories/{_ID}",
    f"{_RUN}/group?iteration=1&scenario={_SCENARIO}",
    f"/trajectories/{_ID}/what-if/{Ids.what_if}",
    f"/trajectories/{_ID}/what-if/{Ids.what_if}/w-1",
    f"{_RUN}/held-out",
    f"{_RUN}/rejudgings",
    f"{_RUN}/rejudgings/{Ids.rejudging}",
    f"{_RUN}/held-out?scenario={_SCENARIO}",
    f"{_RUN}/emails",
    f"{_RUN}/metrics?metrics={quote(f'train_metrics.{EVIL}', safe='')}",
    f"{_RUN}/log",
    f"{_RUN}/events",
    f"{_RUN}/request",
    "/models",
    f"/releases/{Ids.release}",
    "/schedules",
    f"/schedules/{Ids.schedule}",
    "/evaluations",
    f"/evaluations/{Ids.evaluation}",
    "/webhooks",
    f"/webhooks/{Ids.endpoint}",
    "/keys",
    "/sessions",
    f"/sessions/{Ids.session}",
    "/data",
    f"/data/graphs/{'a' * 64}",
)
OTHERS = (
    f"{_RUN}/iterations",
    "/start",
    f"/start?fork={Ids.run}",
    "/ask",
    "/nowhere",
    "/runs/nobody",
    "/trajectories/none",
)
SEEN = "<img src=x onerror='globalThis.hacked=1'>"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def base(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of a service whose database is full of hostile rows. No test changes anything there."""
    async with database(postgres, MIGRATED) as url:
        await make_rows(url)
        settings = settings_for(tmp_path_factory.mktemp("hostile"), url, require_keys="never")
        async with served(settings, ScriptedLoop()) as client:
            yield str(client.base_url).rstrip("/")


async def test_hostile_content_is_text_and_axe_finds_no_serious_fault_on_any_page(visit: Visit, base: str) -> None:
    faults_by_path = {}
    await visit.open(base)
    for path in (*HOSTILE, *OTHERS):
        await visit.go(path)
        faults_by_path[path] = await visit.inaccessible()
        if path in HOSTILE:
            await _check_hostile_content(visit, path)
    await visit.page.emulate_media(color_scheme="dark")
    await visit.page.set_viewport_size({"width": 390, "height": 844})
    what_if, rejudging = f"/trajectories/{_ID}/what-if/{Ids.what_if}", f"{_RUN}/rejudgings/{Ids.rejudging}"
    release = f"/releases/{Ids.release}"
    schedules = ("/schedules", f"/schedules/{Ids.schedule}")
    for path in ("/", _RUN, f"{_RUN}/trajectories/{_ID}", what_if, rejudging, release, *schedules, "/start"):
        await visit.go(path)
        faults_by_path[f"{path} on a dark phone"] = await visit.inaccessible()
    assert {path: faults for path, faults in faults_by_path.items() if faults} == {}


async def _check_hostile_content(visit: Visit, path: str) -> None:
    await visit.page.evaluate("() => document.querySelectorAll('main details').forEach(one => { one.open = true })")
    text = await visit.page.locator("main").inner_text()
    assert "<img src=x" in text, path
    assert "\u202e" not in text, path
    assert "\u0007" not in text, path
    assert len(text) < len(LONG), path
    assert not await visit.page.evaluate("() => 'hacked' in globalThis"), path
    assert await visit.page.locator("main img, main script, main iframe").count() == 0, path
    width = await visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    assert width <= 0, f"{path} is {width} pixels wider than the window"


async def test_an_evaluation_leads_to_the_page_of_its_what_if_or_rejudging(visit: Visit, base: str) -> None:
    await visit.open(base)
    await visit.go(f"/evaluations/{Ids.what_if}")
    await expect(visit.page).to_have_url(re.compile(f"/ui/trajectories/.+/what-if/{Ids.what_if}$"))
    await visit.go(f"/evaluations/{Ids.rejudging}")
    await expect(visit.page).to_have_url(f"{base}/ui{_RUN}/rejudgings/{Ids.rejudging}")
    await visit.page.go_back()
    await expect(visit.page).to_have_url(re.compile(f"/ui/trajectories/.+/what-if/{Ids.what_if}$"))


async def test_a_long_line_is_shown_whole_when_asked_for(visit: Visit, base: str) -> None:
    await visit.open(base, f"{_RUN}/trajectories/{_ID}")
    await visit.page.get_by_role("button", name="Show all 1,000,000 characters").click()
    await expect(visit.page.locator(".message.tool")).to_contain_text(LONG)
    await visit.button("Colour tokens by likelihood").click()
    await expect(visit.page.locator(".tokens .t0, .tokens .t1").first).to_contain_text(SEEN)


async def test_what_an_email_takes_from_the_graph_is_marked(visit: Visit, base: str) -> None:
    await visit.open(base, f"{_RUN}/emails?iteration=1")
    await expect(visit.page.locator(".email mark")).to_contain_text(SEEN)
    await visit.page.locator(".citation").last.click()
    await expect(visit.page.locator("div.chosen")).to_contain_text(SEEN)
    await visit.page.get_by_role("slider").fill("2")
    await expect(visit.page.locator(".email mark")).to_have_count(0)
