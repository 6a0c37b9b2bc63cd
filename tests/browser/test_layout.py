"""Pages at the widths of a desktop, a laptop and a phone: tables, navigation, going back, and the first load."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import URL, insert, update
from ulid import ULID

from benchmarks.service.dashboard import rows
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Run, Trajectory
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED, database
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long

WIDTHS = {"desktop": (1440, 900), "laptop": (1280, 720), "phone": (390, 844)}
RUNS = 8
_ITERATIONS, _TRAJECTORIES = 20, 200
_MOST_REQUESTS, _MOST_BYTES = 15, 120_000
_SCENARIO = "train.0"
_APART = "?seeds=apart"  # the runs have the same settings
_WORDY = {
    "name": "a lower learning rate, as in the second table of the paper, with a longer warm-up",
    "notes": "Half the learning rate of the paper, to see whether the policy still moves at all. " * 3,
    "tags": ["paper", "table-2"],
    "warnings": ["The base model has no chat template of its own, so the one of its family is used." * 2],
}
"""What people and the service say of the run, in its head."""
_FIRST_CONTENT = {
    "": ".chart svg",
    "/iterations": ".long .body .row",
    "/trajectories": ".group .rollouts",
    "/held-out": ".empty",  # nothing of its evaluations is kept
    "/rejudgings": ".judge-again select",
    "/events": ".events li",
    "/request": "main .code",
}
"""What a reader opens each part of a run for."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, str]]:
    """The URL of a service with some runs, and the newest run with iterations to read."""
    async with database(postgres, MIGRATED) as url:
        run_ids = [str(ULID()) for _ in range(RUNS)]
        engine = make_engine(parse_url(url))
        async with make_database(engine).begin() as tx:
            for run_id in run_ids:
                for table, table_rows in rows(run_id, _ITERATIONS, _TRAJECTORIES):
                    await tx.execute(insert(table), table_rows)
            await tx.execute(update(Run).where(Run.id == run_ids[-1]).values(**_WORDY))
            for number in range(5):  # a group in which three did the same, and one of the others failed
                did = [{"role": "assistant", "content": "2 October" if number < 3 else f"answer {number}"}]
                values = {"messages": did, "success": number != 4, "reward": 1.0 - number / 10}
                this = update(Trajectory).where(Trajectory.id == f"{run_ids[-1]}-{number}")
                await tx.execute(this.values(values))
        await engine.dispose()
        async with served(settings_for(tmp_path_factory.mktemp("layout"), url), ScriptedLoop()) as client:
            yield str(client.base_url).rstrip("/"), run_ids[-1]


async def _at(visit: Visit, name: str) -> None:
    width, height = WIDTHS[name]
    await visit.page.set_viewport_size({"width": width, "height": height})


@pytest.mark.parametrize(("place", "content"), [(_APART, ".run"), ("/runs/RUN", ".chart svg")])
async def test_a_first_load_takes_few_requests_and_bytes(
    visit: Visit, service: tuple[str, str], place: str, content: str
) -> None:
    network = await visit.page.context.new_cdp_session(visit.page)
    await network.send("Network.enable")
    sizes: list[int] = []
    network.on("Network.loadingFinished", lambda finished: sizes.append(int(finished["encodedDataLength"])))
    await visit.open(service[0], place.replace("RUN", service[1]))
    await expect(visit.page.locator(content).first).to_be_visible()
    assert len(sizes) <= _MOST_REQUESTS
    assert sum(sizes) <= _MOST_BYTES  # 2.4 s at 50 kB/s


async def test_a_page_of_the_second_script_can_be_loaded_again(visit: Visit, service: tuple[str, str]) -> None:
    await visit.open(service[0])
    await visit.page.route("**/others.js", lambda route: route.abort())
    await visit.go("/schedules")
    await expect(visit.text("A part of the dashboard cannot be loaded.")).to_be_visible()
    await visit.page.unroute("**/others.js")
    await visit.button("Try again").click()
    await expect(visit.page.get_by_role("heading", name="Schedules")).to_be_visible()
    await expect(visit.page).to_have_title("Schedules · Learnloop")
    await visit.go("/settings")
    await visit.page.go_back()
    await expect(visit.page.get_by_role("heading", name="Schedules")).to_be_visible()


async def test_links_with_a_hash_still_lead_to_their_page(visit: Visit, service: tuple[str, str]) -> None:
    base, run_id = service
    visit.base = base
    await visit.page.goto(f"{base}/#/runs/{run_id}/iterations?held=test")
    await expect(visit.page).to_have_url(f"{base}/ui/runs/{run_id}/iterations?held=test")
    await expect(visit.link("Iterations")).to_have_attribute("aria-current", "page")
    await visit.page.reload()
    await expect(visit.link("Iterations")).to_have_attribute("aria-current", "page")


async def test_going_back_returns_to_where_the_page_was_left(visit: Visit, service: tuple[str, str]) -> None:
    await visit.page.set_viewport_size({"width": 1280, "height": 400})
    await visit.open(service[0], _APART)
    last = visit.page.locator(".run-name").last
    await last.scroll_into_view_if_needed()
    scroll_y: float = await visit.page.evaluate("scrollY")
    assert scroll_y > 0
    await last.click()
    await visit.page.get_by_label("Parts of the run").wait_for()
    assert await visit.page.evaluate("scrollY") == 0
    await visit.page.go_back()
    await visit.page.wait_for_function("place => Math.abs(scrollY - place) < 2", arg=scroll_y)
    await expect(visit.page.locator(".run")).to_have_count(RUNS)


@pytest.mark.parametrize("width", WIDTHS)
async def test_the_iterations_can_be_sorted_and_say_that_there_is_more(
    visit: Visit, service: tuple[str, str], width: str
) -> None:
    base, run_id = service
    await _at(visit, width)
    await visit.open(base, f"/runs/{run_id}/iterations")
    table = visit.page.get_by_role("table", name="Iterations, newest first")
    first = table.get_by_role("row").nth(1).get_by_role("cell").first
    await expect(first).to_have_text(str(_ITERATIONS))
    header = table.get_by_role("columnheader", name="Iteration")
    await header.get_by_role("button").click()
    await expect(header).to_have_attribute("aria-sort", "ascending")
    await expect(first).to_have_text("0 (baseline)")
    assert await visit.inaccessible() == []
    await expect(table).to_have_attribute("data-more", "right")
    left_edge: float = await first.evaluate("cell => cell.getBoundingClientRect().left")
    await table.evaluate("table => { table.scrollLeft = 300 }")
    await expect(table).to_have_attribute("data-more", "left right")
    assert await first.evaluate("cell => cell.getBoundingClientRect().left") == left_edge, "it stays in sight"
    heads = table.get_by_role("columnheader")
    cut = await heads.evaluate_all("all => all.filter(each => each.scrollWidth > each.clientWidth).length")
    assert cut == 0


async def test_a_phone_shows_that_the_navigation_goes_on_and_has_links_for_fingers(
    visit: Visit, service: tuple[str, str]
) -> None:
    base, run_id = service
    await _at(visit, "phone")
    for path in ("", f"/runs/{run_id}/log", f"/runs/{run_id}/trajectories", "/data", "/models"):
        await visit.open(base, path)
        low = "all => all.filter(each => each.checkVisibility()).map(each => [each.textContent, each.clientHeight])"
        links: list[Any] = await visit.page.locator("main a, header a").evaluate_all(low)
        assert [(text, height) for text, height in links if 0 < height < 24] == [], path
    await visit.open(base, f"/runs/{run_id}/log")
    main, parts = (visit.page.get_by_role("navigation", name=name) for name in ("Main", "Parts of the run"))
    await expect(main).to_have_attribute("data-more", "right")
    await expect(parts).to_have_attribute("data-more", "left")  # it has been scrolled to the current one
    await expect(visit.link("Log")).to_be_in_viewport()


async def test_the_first_screen_of_a_phone_shows_what_each_part_of_a_run_is_about(
    visit: Visit, service: tuple[str, str]
) -> None:
    base, run_id = service
    await _at(visit, "phone")
    height = WIDTHS["phone"][1]
    for part, content in _FIRST_CONTENT.items():
        await visit.open(base, f"/runs/{run_id}{part}")
        box = await visit.page.locator(content).first.bounding_box()
        assert box, part
        assert box["y"] + min(box["height"], 100) < height, part
    await visit.open(base, f"/runs/{run_id}")
    await visit.text("A warning about the request").click()
    await expect(visit.text(_WORDY["warnings"][0])).to_be_visible()
    await visit.open(base, f"/runs/{run_id}/trajectories")
    await visit.page.get_by_text("Filters", exact=True).click()
    await visit.page.get_by_role("group", name="Rollouts to show").get_by_label("Success").select_option("true")
    await expect(visit.page).to_have_url(f"{base}/ui/runs/{run_id}/trajectories?kind=train&iteration=20&success=true")
    for scheme in ("dark", "light"):
        await visit.page.emulate_media(color_scheme=scheme)
        assert await visit.inaccessible() == []


async def test_more_runs_than_can_be_compared_say_so(visit: Visit, service: tuple[str, str]) -> None:
    await visit.open(service[0], _APART)
    boxes = visit.page.get_by_role("checkbox")
    await boxes.first.check()
    await expect(visit.text("Mark another run to compare it with.")).to_be_visible()
    for index in range(1, 7):
        await boxes.nth(index).check()
    await expect(visit.button("Compare 7 runs")).to_be_disabled()
    await expect(visit.text("At most 6 runs can be compared: unmark 1.")).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_group_folds_what_is_the_same_and_shows_failures_next_to_the_best(
    visit: Visit, service: tuple[str, str], width: str
) -> None:
    base, run_id = service
    await _at(visit, width)
    await visit.open(base, f"/runs/{run_id}/group?iteration=1&scenario={_SCENARIO}")
    await expect(visit.text("5 rollouts, 3 different")).to_be_visible()
    heads = visit.page.get_by_role("region", name="Rollouts side by side").get_by_role("columnheader")
    await expect(heads).to_have_count(4)
    await expect(heads.nth(1)).to_contain_text("3 \u00d7 the same")
    await expect(heads.nth(2)).to_contain_text("✗ no success")
    assert await visit.inaccessible() == []
    assert await visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
