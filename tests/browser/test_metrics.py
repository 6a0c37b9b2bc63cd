"""Any metric of a run is charted: chosen, smoothed, on a logarithmic axis, of some iterations; and its log is read."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect
from sqlalchemy import URL, insert, update
from ulid import ULID

from benchmarks.service.dashboard import rows
from learnloop_service.app.db.tables import Event, Iteration, Run, Trajectory
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED, database
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database

pytestmark = pytest.mark.long

_ITERATIONS, _FAILED = 300, 3
_RUN, _OTHER = str(ULID()), str(ULID())
_CHOSEN = "metrics=train_metrics.loss,rewards.mean"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def base(postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of a service with a run of 300 iterations and a shorter one."""
    async with database(postgres, MIGRATED) as url:
        await _write(url)
        async with served(settings_for(tmp_path_factory.mktemp("metrics"), url), ScriptedLoop()) as client:
            yield str(client.base_url).rstrip("/")


async def _write(database_url: str) -> None:
    async with opened_database(database_url) as database, database.begin() as tx:
        for table, table_rows in (*rows(_RUN, _ITERATIONS, 2 * _ITERATIONS), *rows(_OTHER, 10, 0)):
            if table_rows:
                await tx.execute(insert(table), table_rows)
        for iteration in range(2, _FAILED + 2):
            of_iteration = (Trajectory.run_id == _RUN, Trajectory.iteration == iteration)
            failed: dict[str, Any] = {"error": f"the server went away in {iteration}"}
            failed["started_at"] = datetime(2026, 1, 2, iteration, tzinfo=UTC)
            await tx.execute(update(Trajectory).where(*of_iteration).values(failed))
        zero = update(Iteration).where(Iteration.run_id == _RUN, Iteration.iteration == 7)
        await tx.execute(zero.values(train_metrics={"loss": -0.5}))
        last = {"run_id": _RUN, "seq": 4 * _ITERATIONS, "iteration": 9, "actor": "worker", "version": 1}
        data = {"message": "Equal rewards taught nothing."}
        await tx.execute(insert(Event), [last | {"type": "iteration.no_signal", "data": data}])
        await tx.execute(update(Run).where(Run.id == _RUN).values(event_seq=4 * _ITERATIONS))


def _chart(visit: Visit, title: str) -> Any:
    return visit.page.get_by_role("figure").filter(has=visit.page.get_by_text(title, exact=True))


async def test_metrics_are_chosen_and_the_choice_stays_in_the_address(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}/metrics")
    for title in ("Loss", "Entropy", "Gradient norm", "Malformed calls"):
        await expect(_chart(visit, title)).to_have_count(1)
    await visit.page.locator(".picker summary").click()
    await visit.button("Choose none").click()
    await expect(visit.text("No metric is chosen")).to_be_visible()
    await visit.page.get_by_label("Find a metric").fill("turns")
    await visit.page.get_by_label("Held-out turns, validation, sampled").check()
    await visit.page.get_by_label("Turns", exact=True).check()
    await expect(visit.page).to_have_url(re.compile(r"metrics=held_out\.validation\.sampled\.turns%2Crollouts\.turns"))
    await expect(_chart(visit, "Turns").locator("polyline")).to_have_count(1)
    await visit.is_well_made()
    await visit.page.reload()
    await expect(visit.page.get_by_role("figure")).to_have_count(2)


async def test_a_line_is_smoothed_and_its_figures_stay_behind_it(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}/metrics?{_CHOSEN}")
    chart = _chart(visit, "Loss")
    await expect(chart.locator("polyline")).to_have_count(1)
    await visit.page.get_by_role("slider", name="Smoothing").focus()
    await visit.page.keyboard.press("End")
    await expect(visit.page).to_have_url(re.compile("smooth=0.98"))
    await expect(chart.locator("polyline")).to_have_count(2)
    await expect(chart.locator("polyline.faint")).to_have_count(1)
    await chart.locator("summary").click()
    await expect(chart.get_by_role("columnheader")).to_have_text(["Iteration", "Loss", "Loss, smoothed"])
    assert await visit.inaccessible() == []


async def test_a_logarithmic_axis_says_what_it_cannot_show(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}/metrics?{_CHOSEN}")
    await visit.page.get_by_label("Logarithmic").check()
    await expect(visit.page).to_have_url(re.compile("log=1"))
    hidden = "1 figure of 0 or less is not drawn: a logarithmic axis has none."
    await expect(_chart(visit, "Loss")).to_contain_text(hidden)
    ticks = await _chart(visit, "Loss").locator(".axes g text").all_text_contents()
    assert ticks == ["0.100", "0.200", "0.500"]
    await visit.go(f"/runs/{_RUN}/metrics?metrics=failed_rollouts&log=1")
    await expect(_chart(visit, "Failed rollouts")).to_contain_text("No figure is above 0.")


async def test_some_iterations_are_shown_by_dragging_and_by_the_keyboard(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}/metrics?{_CHOSEN}")
    box = await _chart(visit, "Loss").locator(".hit").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await visit.page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    await visit.page.mouse.down()
    await visit.page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=4)
    await expect(_chart(visit, "Loss").locator(".dragged")).to_have_count(1)
    await visit.page.mouse.up()
    await expect(visit.page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    first = visit.page.get_by_label("From iteration")
    assert 60 < int(await first.input_value()) < 90
    for title in ("Loss", "Mean reward"):  # all charts show the same iterations
        assert "100" in await _chart(visit, title).locator(".axes > text").all_text_contents()
        assert "300" not in await _chart(visit, title).locator(".axes > text").all_text_contents()
    await first.fill("290")
    await visit.page.keyboard.press("Tab")
    await visit.page.get_by_label("To iteration").fill("300")
    await visit.page.keyboard.press("Enter")
    await _chart(visit, "Loss").locator("summary").click()
    await expect(_chart(visit, "Loss").get_by_role("rowheader")).to_have_text([str(it) for it in range(290, 301)])
    await visit.button("All iterations").click()
    await expect(first).to_have_value("0")


async def test_runs_are_compared_by_any_metric(visit: Visit, base: str) -> None:
    await visit.open(base, f"/compare?runs={_RUN},{_OTHER}&metrics=timing.total_s")
    chart = _chart(visit, "Seconds of an iteration")
    await expect(chart.locator("polyline")).to_have_count(2)
    await expect(visit.page).to_have_url(re.compile(f"runs={_RUN}"))
    await visit.page.get_by_label("Logarithmic").check()
    await expect(visit.page).to_have_url(re.compile(f"runs={_RUN}.*log=1"))


async def test_the_log_has_errors_first_and_is_read_page_by_page(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}/events")  # an address of an earlier version
    lines = visit.page.locator(".events > li")
    await expect(lines).to_have_count(100)
    await expect(lines.nth(0)).to_contain_text("rollout failed, 2 times iteration 4")
    await expect(lines.nth(_FAILED)).to_contain_text("Equal rewards taught nothing.")
    await visit.button("Show 100 more").click()
    await expect(lines).to_have_count(200)
    await lines.nth(_FAILED).locator("summary").click()
    details = await lines.nth(_FAILED).locator("pre").text_content()
    assert json.loads(details or "") == {"message": "Equal rewards taught nothing."}
    await visit.page.get_by_role("button", name="Errors").click()
    await expect(visit.page).to_have_url(re.compile("level=error"))
    await expect(lines).to_have_count(_FAILED)
    await visit.is_well_made()
    await lines.nth(0).get_by_role("link").click()
    await expect(visit.text("the server went away in 4")).to_be_visible()


async def test_a_run_of_300_iterations_shows_all_its_evaluations(visit: Visit, base: str) -> None:
    await visit.open(base, f"/runs/{_RUN}")
    chart = _chart(visit, "Success on held-out scenarios")
    await chart.locator("summary").click()
    await expect(chart.get_by_role("rowheader")).to_have_count(_ITERATIONS // 4 + 1)
