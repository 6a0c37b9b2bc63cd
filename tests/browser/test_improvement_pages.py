"""Improvements in the dashboard: started from an evaluation or a run, what was tried, what is left, and what to do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from learnloop_service.training.loop.learn_loop import learn_loop
from tests.browser.stored_improvements import stored_improvement
from tests.browser.visit import Visit
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.hinted_prompts import HINTED, right_when_hinted, store
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


@asynccontextmanager
async def service(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service whose model is right only with a hint in its prompt, which is stored."""
    async with scripted_chat(right_when_hinted) as chat:
        settings = settings_for(data_dir, database_url, engine_url=chat.url.removesuffix("/v1"))
        async with served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
            await store(client, {"parts": {"system": "{original} Be brief."}}, "useless")
            await store(client, HINTED)
            yield client


async def test_an_improvement_says_what_it_tried_and_why_it_ended(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with service(data_dir, database_url) as client:
        base, page = str(client.base_url).rstrip("/"), visit.page
        await visit.open(base, "/improvements")
        await expect(visit.text("learnloop improve start")).to_be_visible()
        await stored_improvement(client, database_url)
        await visit.open(base, "/improvements")
        await visit.is_well_made()
        await visit.link("email_search").click()
        await expect(page.get_by_role("heading", name="Improvement of email_search")).to_contain_text("reached")
        await expect(visit.text("A prompt alone reached")).to_be_visible()
        await expect(visit.text("90%, confirmed on test tasks")).to_be_visible()
        rows = page.get_by_role("table", name="Candidates").get_by_role("row")
        await expect(rows.nth(2)).to_contain_text("not better on 4 training tasks")
        await expect(rows.nth(2)).to_contain_text("0 won, 0 lost of 4 training tasks")
        best = rows.filter(has=page.get_by_text("best", exact=True))
        await expect(best).to_contain_text("8 won, 0 lost of 8")
        await expect(best).to_contain_text("error at most 1.25%")
        await expect(best).to_contain_text("400K tokens")
        assert await best.locator(".fill.good").evaluate("bar => bar.clientWidth === bar.parentElement.clientWidth")
        await expect(page.get_by_role("heading", name="system new")).to_be_visible()
        await page.get_by_label("Of candidate").select_option("1 prompt")
        await expect(visit.text("{original} Be brief.")).to_be_visible()
        await expect(visit.text("as it is: 0 of 8 tasks solved")).to_contain_text("2 prompt: 8 of 8 tasks solved")
        await visit.is_well_made()
        await page.emulate_media(color_scheme="dark")
        await visit.is_well_made()
        await best.get_by_role("link", name="validation tasks").click()
        await expect(visit.text("8 won and 0 lost of 8 scenarios")).to_be_visible()


async def test_an_improvement_that_has_ended_goes_on_or_is_deleted(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with service(data_dir, database_url) as client:
        id = await stored_improvement(client, database_url)
        await visit.open(str(client.base_url).rstrip("/"), f"/improvements/{id}")
        dialog = visit.page.get_by_role("dialog")
        await visit.button("Promote").click()
        await expect(dialog).to_contain_text("a model is needed for a release")
        async with visit.page.expect_request("**/promote") as sent:
            await visit.button("Promote it").click()
        body = (await sent.value).post_data_json
        assert body == {"step": 0, "prompt": "hinted@1", "as": "live", "base_model": "learnloop/tiny"}
        await dialog.get_by_role("button", name="Close").click()
        await visit.button("Continue").click()
        await dialog.get_by_label("Success to reach, in percent").fill("150")
        await visit.button("Continue it").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("less than or equal to 1")
        await visit.is_well_made()
        await dialog.get_by_label("Success to reach, in percent").fill("95")
        await visit.button("Continue it").click()
        await expect(visit.text("95%")).to_be_visible()
        await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("reached")  # the champion has 100%
        await visit.confirm("Delete")
        await expect(visit.text("No improvement yet")).to_be_visible()


async def test_a_paused_improvement_has_a_forecast_of_what_is_left(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with service(data_dir, database_url) as client:
        best = {"model": "learnloop/clerk@3", "only_by_person": True, "why": "It is\u202e shorter."}
        waits = datetime(2100, 1, 1, tzinfo=UTC)
        id = await stored_improvement(
            client, database_url, "paused", best, waits_until=waits, reason="paused by local", final=None
        )
        await visit.open(str(client.base_url).rstrip("/"), f"/improvements/{id}")
        forecast = visit.page.get_by_role("table", name="Forecast")
        await expect(forecast.get_by_role("row")).to_have_count(3)
        await expect(forecast).to_contain_text("GRPO")
        for text in (
            "paused by local",
            "It waits for prompts until",
            "quotes training tasks",
            "It is⟨U+202E⟩ shorter.",
        ):
            await expect(visit.text(text)).to_be_visible()
        await visit.is_well_made()
        await visit.button("Promote").click()
        dialog = visit.page.get_by_role("dialog")
        await expect(dialog.get_by_label("Prompt")).to_have_value("hinted@1")
        await expect(dialog).to_contain_text("100% success on held-out scenarios")
        await visit.is_well_made()
        await dialog.get_by_role("button", name="Close").click()
        await visit.button("Resume").click()
        await expect(visit.button("Pause")).to_be_visible()
        await visit.confirm("Cancel")
        await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("cancelled")


async def test_an_evaluation_and_a_run_can_be_improved(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client:
        base, page = str(client.base_url).rstrip("/"), visit.page
        useless, hinted = sorted(
            (await client.get("/prompts")).json()["items"], key=lambda prompt: prompt["name"], reverse=True
        )
        models = [{"model": "learnloop/tiny", "prompt": "useless"}]
        evaluation = (await client.post("/evaluations", json={"models": models, "scenarios": 8})).json()
        await visit.open(base, f"/evaluations/{evaluation['evaluation_id']}")
        await visit.button("Improve").click()
        await page.get_by_label("Prompts to try").fill("unknown")
        await visit.button("Start").click()
        await expect(page.get_by_label("Prompts to try")).to_have_attribute("aria-invalid", "true")
        await visit.is_well_made()
        await page.get_by_label("Prompts to try").fill("hinted@1, useless")
        await visit.button("Start").click()
        await visit.button("Pause").click()
        await expect(visit.text("paused by local")).to_be_visible()
        await visit.confirm("Cancel")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled")
        [brief] = (await client.get("/improvements")).json()["items"]
        request = (await client.get(f"/improvements/{brief['id']}")).json()["request"]
        assert (request["target"], request["prompts"]) == (0.9, ["hinted@1", "useless"])
        assert (request["prompt"], request["model"]["base_model"]) == (useless["sha256"], "learnloop/tiny")

        small = {"groups_per_iteration": 1, "rollouts_per_group": 2, "iterations": 1}
        run = await client.post("/learn-loop", json={**small, "prompt": "hinted", "max_turns": 3})
        run_id = run.raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(base, f"/runs/{run_id}")
        await visit.button("Improve").click()
        await page.get_by_label("Most minutes").fill("7")
        await visit.button("Start").click()
        await visit.confirm("Cancel")
        newest = (await client.get("/improvements")).json()["items"][0]
        request = (await client.get(f"/improvements/{newest['id']}")).json()["request"]
        assert (request["budget"]["max_minutes"], request["max_turns"]) == (7, 3)
        assert request["prompt"] == hinted["sha256"]
        assert request["from"] in (None, run_id)
