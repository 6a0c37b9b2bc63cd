"""From the form to a promoted checkpoint, in a browser, on the real service with the real engine."""

import re
from pathlib import Path
from typing import Any

import openai
import pytest
from playwright.async_api import expect

from tests.browser.real_service import real_service
from tests.browser.visit import Visit
from tests.fakes.engine_process import EngineProcess

pytestmark = pytest.mark.long

_LONG_MS = 300_000
_SMALL = {
    "Iterations": "1",
    "Scenarios per iteration": "2",
    "Name of the model": "clerk",
    "Evaluate every … iterations": "1",
    "Validation scenarios": "2",
    "Test scenarios": "1",
    "Turns at most": "3",
    "Tokens per turn at most": "60",
}


async def test_a_run_from_the_form_to_a_promoted_checkpoint(
    visit: Visit, data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    with EngineProcess(tmp_path) as engine:
        async with real_service(data_dir, database_url, engine) as base:
            await visit.open(base)
            await expect(visit.text("No runs yet")).to_be_visible()
            await _start(visit)
            await _watch_it_finish(visit)
            await _read_a_trajectory(visit)
            await _compare(visit)
            await _ask_and_rate(visit)
            await _promote(visit)
            await _promote_from_the_run(visit)
            await _own_agent(visit)


async def _start(visit: Visit) -> None:
    page = visit.page
    await page.locator("main").get_by_role("link", name="Start a run").first.click()
    for group in ("Held-out evaluation", "Limits of a rollout"):
        await visit.text(group).click()
    for name, value in _SMALL.items():
        await page.get_by_label(name, exact=True).fill(value)
    rollouts = page.locator("#field-rollouts_per_group")
    await rollouts.fill("1")
    await visit.button("Start the run").click()
    await expect(rollouts).to_have_attribute("aria-invalid", "true")  # at least 2
    await rollouts.fill("4")
    await page.locator("#field-evaluation-samples").fill("1")
    await page.get_by_label("End when little is left to learn").select_option("true")
    for part in ('"name": "clerk"', '"end_when_learned": true'):
        await expect(page.locator("pre.code")).to_contain_text(part)
    await visit.button("Start the run").click()


async def _watch_it_finish(visit: Visit) -> None:
    await expect(visit.page.get_by_role("heading", name="learnloop/clerk")).to_contain_text(
        "completed", timeout=_LONG_MS
    )
    await expect(visit.text("1 of 1 iteration")).to_be_visible()
    await expect(visit.page.get_by_title("The agent attempts 2 scenarios, each 4 times: 8 rollouts.")).to_be_visible()


async def _read_a_trajectory(visit: Visit) -> None:
    page = visit.page
    await visit.link("Trajectories").click()
    await visit.settled()
    await expect(page.locator(".group")).to_have_count(2)
    await page.locator(".rollouts a").first.click()
    await expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    address = page.url
    await visit.button("Colour tokens by likelihood").click()
    await expect(page.locator(".tokens").filter(has_text="<tool_call>").first).to_be_visible()
    await page.goto("about:blank")
    await page.goto(address)  # the address of a trajectory leads to it
    await visit.link("Worse reward →").click()
    await expect(visit.text("2 of 4 by reward")).to_be_visible()


async def _compare(visit: Visit) -> None:
    page = visit.page
    await visit.link("The group side by side").click()
    await expect(visit.text(re.compile("4 rollouts, (all the same|[2-4] different)"))).to_be_visible()
    await page.go_back()
    await visit.link("Run").click()
    await visit.link("What it learned").click()
    await page.locator(".matrix a").first.click()
    await expect(page.get_by_role("link", name="Before training")).to_be_visible()


async def _ask_and_rate(visit: Visit) -> None:
    page = visit.page
    await visit.link("Ask").click()
    await expect(page.get_by_label("Question", exact=True)).not_to_have_value("")
    await visit.button("Ask both").click()
    for title in ("Before training", re.compile("^Trained")):
        answered = page.get_by_role("region", name=title)
        await expect(answered.locator(".message.assistant").first).to_be_visible(timeout=_LONG_MS)
        await expect(answered.get_by_role("status").first).to_contain_text(
            re.compile("right|wrong|answered|no answer"), timeout=_LONG_MS
        )
    await answered.get_by_role("button", name="Good").click()
    await expect(answered.get_by_text("Rated good: kept as feedback.")).to_be_visible()


async def _promote(visit: Visit) -> None:
    page = visit.page
    await visit.link("Models").click()
    await visit.link("learnloop/clerk").click()
    await visit.button("Promote").first.click()
    await page.get_by_label("Name", exact=True).fill("live")
    await visit.button("Promote it").click()
    card = page.get_by_role("region", name="Promote", exact=True)
    await expect(card.get_by_role("status")).to_contain_text("learnloop/live now means step")
    await expect(card.locator("pre")).to_contain_text('"model": "learnloop/live"')
    await visit.button("Close").click()
    await expect(card).to_be_hidden()
    await visit.link("Models").first.click()
    await expect(page.get_by_role("region", name="Promoted names")).to_contain_text("learnloop/live")


async def _promote_from_the_run(visit: Visit) -> None:
    page = visit.page
    await visit.link("learnloop/clerk").first.click()
    await visit.link("a run, iteration 1").click()
    await visit.button("Promote").click()
    sheet = page.get_by_role("dialog", name="Promote a checkpoint")
    await sheet.get_by_role("radio", name="Everybody, if a trial shows").check()
    await sheet.get_by_label("Better than").select_option("live")
    await expect(visit.button("Start the trial")).to_be_visible()
    assert await visit.inaccessible() == []
    await sheet.get_by_role("radio", name="Everybody, now").check()
    await sheet.get_by_label("Name", exact=True).fill("next")
    await visit.button("Promote it").click()
    await expect(sheet.get_by_role("status")).to_contain_text("learnloop/next now means step")
    assert await visit.inaccessible() == []
    await visit.button("Close").click()
    await expect(sheet).to_be_hidden()
    await expect(visit.text(re.compile(r"next means step \d+ of this run"))).to_be_visible()
    await visit.link("Models").first.click()
    await expect(page.get_by_role("region", name="Promoted names")).to_contain_text("learnloop/next")


async def _own_agent(visit: Visit) -> None:
    page = visit.page
    await visit.link("Sessions").click()
    await visit.text("Open a session").click()
    await page.get_by_label("Model", exact=True).fill("learnloop/live")
    await visit.button("Open").click()
    variables = dict(re.findall(r"export (\w+)='(.*)'", await page.locator("pre.code").inner_text()))
    client = openai.AsyncOpenAI(base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"])
    conversation: Any = [{"role": "user", "content": "When is the kickoff?"}]
    async with client:
        await client.chat.completions.create(model=variables["OPENAI_MODEL"], messages=conversation, max_tokens=4)
    await visit.link("Watch it").click()
    await expect(page.get_by_role("region", name="Call 1").locator(".message.assistant")).to_be_visible()
    await page.get_by_label("Reward", exact=True).fill("0.5")
    await visit.button("End the session").click()
    await expect(page.get_by_role("heading", name="Session")).to_contain_text("ended")
    await expect(page.locator(".trajectory-side")).to_contain_text("0.50")
