"""The pages have a run's rollouts judged again and show what other scores would have changed."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from learnloop_service.app.domain.listed_model import ListedModel
from tests.browser.visit import Visit
from tests.fakes.scripted_judge import Raw, ScriptedJudge, completion, scripted_judge
from tests.integration.app.rejudged_runs import RUN, rejudging_service
from tests.integration.app.served import run_with

pytestmark = pytest.mark.long

_WIDTHS = (1440, 1280, 390)


async def test_a_run_is_judged_again_by_a_noisy_judge(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with (
        scripted_judge() as judge,
        rejudging_service(data_dir, database_url, judge, models=[_without_key(judge)]) as client,
    ):
        judge.reply = _noisy()  # type: ignore[method-assign]
        run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        await visit.open(str(client.base_url).rstrip("/"), f"/runs/{run_id}")
        await visit.link("Judges").click()
        await _plan(visit)
        await visit.button("Judge again").click()
        evaluation_id = await _read_the_report(visit, run_id)
        await visit.go(f"/evaluations/{evaluation_id}")  # leads to the same page
        await expect(visit.page).to_have_url(re.compile(f"/ui/runs/{run_id}/rejudgings/{evaluation_id}$"))
        await _follow_a_change(visit)
        await _overview(visit, run_id)
        await _delete(visit, run_id)
        await _warned(visit)


def _without_key(judge: ScriptedJudge) -> ListedModel:
    """A model whose server wants a key that the operator has not given."""
    return ListedModel.model_validate({"name": "keyless", "model": "openai/gpt-4.1-mini", "base_url": judge.url})


def _noisy() -> Any:
    """A judge model that accepts wrong answers, except in every third verdict on them."""
    turn = itertools.count()

    def opinion(request: Any) -> Raw:
        answer = json.loads(request["messages"][1]["content"])["agent_answer"]
        is_correct = answer == "no idea at all" and next(turn) % 3 > 0
        document = json.dumps({"explanation": f"on {answer}", "correct": is_correct})
        return Raw(body=json.dumps(completion(document) | {"usage": {"prompt_tokens": 30, "completion_tokens": 5}}))

    return opinion


async def _plan(visit: Visit) -> None:
    """The form says what it would do, or why the service refuses it, before anything is started."""
    page = visit.page
    form = page.get_by_role("region", name="Judge again")
    plan = form.get_by_role("group", name="Plan")
    await expect(plan).to_contain_text("4with 16 rollouts")
    await form.get_by_label("Judge", exact=True).select_option("correctness")
    await form.get_by_label("Rollouts").select_option("both")
    await form.get_by_label("Repeats").fill("9")
    await expect(form.get_by_label("Repeats")).to_have_attribute("aria-invalid", "true")
    await expect(plan.get_by_role("alert")).to_contain_text("less than or equal to 8")
    await expect(visit.button("Judge again")).to_be_disabled()
    await form.get_by_label("Repeats").fill("2")
    await form.get_by_label("From iteration").fill("9")
    await expect(plan.get_by_role("alert")).to_contain_text("no saved train or evaluation rollouts in iterations 9")
    await form.get_by_text("Settings of the judge").click()
    await form.get_by_label("Settings as JSON").fill("[]")
    await expect(form.get_by_label("Settings as JSON")).to_have_attribute("aria-invalid", "true")
    await visit.is_well_made(_WIDTHS)
    await form.get_by_label("Settings as JSON").fill("")
    await form.get_by_label("From iteration").fill("")
    await form.get_by_label("Budget in dollars").fill("0")
    await expect(form.get_by_label("Budget in dollars")).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("Budget in dollars").fill("12.5")
    await expect(plan).to_contain_text("2 of each group")
    await expect(plan).to_contain_text("Expected costnot knownNo verdict of this judge")
    await expect(page.get_by_role("heading", name="Rejudgings of this run")).to_have_count(0)
    await visit.is_well_made(_WIDTHS)


async def _read_the_report(visit: Visit, run_id: str) -> str:
    """Return the id of the evaluation."""
    page = visit.page
    await expect(page.get_by_role("heading", name="Judged again by correctness")).to_contain_text("completed")
    sentence = r"from iteration 1 on: \d+% of advantages change sign,.* \d+% do so between two verdicts of the same"
    await expect(page.locator("div.verdict")).to_contain_text(re.compile(sentence))
    await expect(page.get_by_text("Training and held-out rollouts of iterations 0 to 2, each judged 2")).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("Marked at 1: matters from here"))).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("^Success on held-out scenarios"))).to_be_visible()
    table = page.get_by_role("table", name="Changes by iteration")
    await expect(table.get_by_role("row")).to_have_count(3)
    await expect(table.get_by_role("row", name=re.compile(r"^1 \d+% 0 \d"))).to_be_visible()
    noise = page.get_by_role("region", name="The judge's own noise")
    figures = await noise.locator("dd:not(.muted)").all_inner_texts()
    assert [bool(re.fullmatch(pattern, text)) for pattern, text in zip(_NOISE, figures, strict=True)] == [True] * 3, (
        figures
    )
    assert figures[0] != "0.000"
    await page.get_by_role("heading", name="Settings").click()
    await expect(page.get_by_text('"max_usd": 12.5')).to_be_visible()
    await visit.settled()
    await visit.is_well_made(_WIDTHS)
    return page.url.rpartition("/")[2]


_NOISE = (r"0\.\d{3}", r"\u2212?\d\.\d\d", r"\d+%")


async def _follow_a_change(visit: Visit) -> None:
    page = visit.page
    changes = page.locator(".changes > li")
    await expect(changes.first).to_contain_text("on no idea at all")
    await changes.first.get_by_text("What do you think?").click()
    await changes.first.get_by_label("Comment").fill("The run's judge is right.")
    await changes.first.get_by_role("button", name="Good").click()
    await expect(changes.first.locator(".opinions li")).to_contain_text("The run's judge is right.")
    await visit.is_well_made(_WIDTHS)
    address = page.url
    await changes.first.get_by_role("link").click()
    await expect(page).to_have_url(re.compile("/trajectories/"))
    await visit.settled()
    await page.go_back()
    await expect(page).to_have_url(address)
    await visit.settled()


async def _overview(visit: Visit, run_id: str) -> None:
    await visit.go(f"/runs/{run_id}")
    sentence = visit.page.get_by_text(
        "Judged again by correctness: Training would have gone another way from iteration 1"
    )
    await expect(sentence).to_be_visible()
    await visit.is_well_made(_WIDTHS)


async def _warned(visit: Visit) -> None:
    """What the service warns of stands by the form, and the rejudging is one link away."""
    form = visit.page.get_by_role("region", name="Judge again")
    await form.get_by_label("Judge", exact=True).select_option("correctness")
    await form.get_by_text("Settings of the judge").click()
    await form.get_by_label("Settings as JSON").fill('{"model": "keyless"}')
    await expect(form.get_by_role("group", name="Plan")).to_contain_text("4with 16 rollouts")
    await visit.button("Judge again").click()
    await expect(form.get_by_role("status").filter(has_text="keyless")).to_contain_text("its judge may fail")
    await visit.is_well_made(_WIDTHS)
    await form.get_by_role("link", name="See the rejudging").click()
    await expect(visit.page.get_by_role("heading", name="Judged again by correctness")).to_contain_text("completed")


async def _delete(visit: Visit, run_id: str) -> None:
    page = visit.page
    await visit.link("Judges").click()
    row = page.get_by_role("region", name="Rejudgings, newest first").get_by_role("row").nth(1)
    await expect(row).to_contain_text(re.compile("correctness.*completed.*68 of 68"))
    await visit.is_well_made(_WIDTHS)
    await row.get_by_role("link", name="correctness").click()
    await visit.settled()
    await visit.confirm("Delete")
    await expect(page).to_have_url(re.compile(f"/runs/{run_id}/rejudgings$"))
    await expect(page.get_by_role("heading", name="Judge again")).to_be_visible()
    await expect(page.get_by_role("heading", name="Rejudgings of this run")).to_have_count(0)
