"""The page of a run on demonstrations only: its verdict, the charts that have data, and how to start it again."""

import json
import re
from pathlib import Path

import httpx
from playwright.async_api import expect

from tests.browser.visit import Visit
from tests.integration.app.imitating_runs import NOT_EVALUATED, ImitatingBackend, demonstrations, service, store
from tests.integration.app.served import run_with

_WIDTHS = (1440, 390)


async def _supervised(client: httpx.AsyncClient) -> str:
    await store(client, demonstrations(10))
    warm_start = {"demonstrations": {"dataset": "mine"}, "epochs": 2, "batch_size": 4}
    request = {"warm_start": warm_start, "iterations": 0, "evaluation": NOT_EVALUATED, "model": {"name": "warm"}}
    started = (await client.post("/learn-loop", json=request)).raise_for_status().json()
    await run_with(client, started["run_id"], "completed")
    return str(started["run_id"])


async def test_a_finished_run_on_demonstrations_says_that_they_were_learned(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with service(data_dir, database_url, ImitatingBackend()) as client:
        run_id = await _supervised(client)
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await expect(visit.page.locator("div.verdict.good")).to_have_text(
            "Demonstrations learned: held-out loss 2 \N{RIGHTWARDS ARROW} 0.67."
        )
        losses = visit.page.get_by_role("img", name="Loss on the demonstrations")
        await expect(losses).to_be_visible()
        for width in _WIDTHS:
            await visit.page.set_viewport_size({"width": width, "height": 900})
            await expect(visit.page.get_by_role("img", name="Success on held-out scenarios")).to_have_count(0)
            await expect(visit.page.get_by_role("img", name="Training rewards")).to_have_count(0)
            await expect(visit.page.locator(".plot-empty")).to_have_count(0)

        await visit.page.set_viewport_size({"width": 1440, "height": 900})
        await visit.go(f"/runs/{run_id}/request")
        code = visit.page.locator(".as-code pre")
        body = re.search(r'"name": "(warm-[a-z0-9]+)"', await code.inner_text())
        assert body, "starting it again begins a new model"
        await expect(visit.text(f"This begins the new model {body[1]}")).to_be_visible()
        [request] = re.findall(r"-d '(.*)'", await code.inner_text(), re.DOTALL)
        again = await client.post("/learn-loop", json=json.loads(request))
        assert again.status_code == 202, again.text
