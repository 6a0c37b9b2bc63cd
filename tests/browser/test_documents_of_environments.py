"""The dashboard draws what environments bring: documents in the form that starts a run, and tabs of their runs."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.fakes.sales_agent import GRAPH
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

pytestmark = pytest.mark.long


async def test_a_run_is_started_on_a_graph_and_has_the_environments_tab(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await visit.open(str(client.base_url).rstrip("/"), "/start")
        page = visit.page
        graph = page.get_by_label("Knowledge graph")
        await expect(page.get_by_label("Environment", exact=True)).to_be_visible()
        await expect(graph).to_have_count(0)
        await page.get_by_label("Environment", exact=True).select_option("sales_email")
        await expect(page.get_by_text("There must be a Customer Job")).to_be_visible()
        await graph.fill("[{")
        await expect(page.get_by_text("Knowledge graph: this is not valid JSON.")).to_be_visible()
        await graph.fill(json.dumps(GRAPH[:1]))
        await page.get_by_role("button", name="Start the run").click()
        await expect(graph).to_have_attribute("aria-invalid", "true")
        await graph.fill(json.dumps(GRAPH))
        assert await visit.inaccessible() == []
        await page.get_by_role("button", name="Start the run").click()
        await page.get_by_role("link", name="Emails and graph").click()
        await expect(page.get_by_text("No sample email yet")).to_be_visible()
        assert await _graphs(client) == [{"graph": GRAPH}]
        await visit.go("/data")
        await expect(page.get_by_role("heading", name="Knowledge graphs")).to_be_visible()
        await visit.go("/start")
        await page.get_by_role("button", name="Start the run").click()
        await expect(page.get_by_role("link", name="Iterations")).to_be_visible()
        await expect(page.get_by_role("link", name="Emails and graph")).to_have_count(0)


async def _graphs(client: httpx.AsyncClient) -> list[object]:
    listed = (await client.get("/graphs")).json()["items"]
    return [(await client.get(graph["links"]["self"])).json() for graph in listed]
