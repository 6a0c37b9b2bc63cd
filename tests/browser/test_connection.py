"""A run is followed over a connection that breaks off, without anybody loading the page again."""

import threading
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from tests.browser.cut_connection import cut_connection
from tests.browser.visit import Visit
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_what_happened_while_the_connection_was_lost_is_shown(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    loop = ScriptedLoop(gates={number: threading.Event() for number in (2, 3, 4)})
    async with served(settings_for(data_dir, database_url), loop) as client:
        started = (await client.post("/learn-loop", json={"iterations": 4})).raise_for_status().json()
        async with cut_connection(client.base_url.port or 0) as connection:
            page = visit.page
            await visit.open(connection.url, f"/runs/{started['run_id']}")
            await expect(page.locator(".connection")).to_have_text("live")
            await expect(visit.text("1 of 4 iterations")).to_be_visible()
            loop.gates[2].set()
            await expect(visit.text("2 of 4 iterations")).to_be_visible()  # by the stream alone

            connection.cut()
            await expect(page.locator(".connection")).to_contain_text("lost")
            loop.gates[3].set()
            await run_with(client, started["run_id"], "running")
            connection.restore()
            await expect(page.locator(".connection")).to_have_text("live")
            await expect(visit.text("3 of 4 iterations")).to_be_visible()

            loop.gates[4].set()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
            await visit.go(f"/runs/{started['run_id']}/log")
            await expect(page.locator(".events > li")).to_have_count(await _events(client, started["run_id"]))


async def _events(client: httpx.AsyncClient, run_id: str) -> int:
    """How many events the log of the run has: none may be shown twice or left out."""
    page = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()
    return len(page["items"])


async def test_a_page_opened_while_the_service_is_away_recovers(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 1, "model": {"name": "clerk"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        async with cut_connection(client.base_url.port or 0) as connection:
            await visit.open(connection.url, "/start")
            for path, title in ((f"/runs/{run_id}", "learnloop/clerk"), ("/models", "Models")):
                connection.cut()
                await visit.go(path)
                await expect(visit.text("No connection")).to_be_visible()
                await expect(visit.button("Try again").first).to_be_visible()
                connection.restore()
                await expect(visit.text("No connection")).to_have_count(0)  # nobody has pressed the button
                await expect(visit.page.get_by_role("heading", level=1)).to_contain_text(title)
