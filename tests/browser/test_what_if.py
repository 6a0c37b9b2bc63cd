"""The pages continue a rollout from one of its turns and look for its decisive turn, on the real engine."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import expect
from sqlalchemy import text

from learnloop_service.app.db.database import make_engine, parse_url
from tests.browser.real_service import real_service
from tests.browser.visit import Visit
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with
from tests.opened_database import execute

pytestmark = pytest.mark.long

_WIDTHS = (1440, 1280, 390)

_LONG_MS = 300_000
_RUN = {
    "iterations": 1,
    "groups_per_iteration": 3,
    "rollouts_per_group": 2,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 0, "samples": 1},
    "seed": 3,
}


async def test_a_rollout_is_continued_from_a_turn_and_its_decisive_turn_is_looked_for(
    visit: Visit, data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    with EngineProcess(tmp_path) as engine:
        async with real_service(data_dir, database_url, engine) as base:
            original = await _recorded(base)
            await visit.open(base, f"/runs/{original['run_id']}/trajectories/{original['id']}")
            await _ask(visit)
            await _read_what_became_of_it(visit)
            await _be_refused(visit, database_url)
            await visit.go(f"/trajectories/{original['id']}")
            await _look_for_the_decisive_turn(visit)
            await _delete(visit)
            await _continue_until_it_tells(visit, base, database_url, original)


async def _recorded(base: str) -> Any:
    """A trajectory of a run with at least two turns."""
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
        run_id = (await client.post("/learn-loop", json=_RUN)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        listed = await client.get(f"/runs/{run_id}/trajectories", params={"kind": "train"})
        return next(rollout for rollout in listed.raise_for_status().json()["items"] if rollout["turns"] >= 2)


async def _ask(visit: Visit) -> None:
    page = visit.page
    await visit.button("What if at turn 2").click()
    form = page.get_by_role("region", name="Continue from here, turn 2")
    change = form.get_by_label("Change before this turn")
    options = await change.locator("option").all_inner_texts()
    await change.select_option(
        label=next(option for option in options if re.fullmatch(r"Result of \w+, turn 1", option))
    )
    await expect(form.get_by_text("The world stays as it is")).to_be_visible()
    await form.get_by_label("New text").fill("No emails.")
    await form.get_by_role("checkbox", name=re.compile(r"checkpoint \(step 1\)")).check()
    await expect(form.get_by_text("2 models continue.")).to_be_visible()
    await form.get_by_label("Continuations").fill("65")
    await visit.button("Continue from here").click()
    await expect(form.get_by_label("Continuations")).to_have_attribute("aria-invalid", "true")
    await visit.is_well_made(_WIDTHS)
    await form.get_by_label("Continuations").fill("3")
    await visit.button("Continue from here").click()


async def _read_what_became_of_it(visit: Visit) -> None:
    page = visit.page
    await expect(page.get_by_role("heading", name="What if: from turn 2, edited")).to_contain_text(
        "completed", timeout=_LONG_MS
    )
    clause = r"\d of 3 continuations succeed \[\d+%, \d+%\]; "
    sentence = re.compile(rf"^step 0: {clause}(best|newest), step 1: {clause}the rollout itself (failed|succeeded)\.$")
    await expect(page.locator("div.verdict")).to_have_text(sentence)
    await expect(page.locator(".both-texts").get_by_text("No emails.")).to_be_visible()
    await expect(page.get_by_role("region", name="Figures by turn and model").get_by_role("row")).to_have_count(3)
    await expect(page.get_by_role("list", name=re.compile("^Next actions of turn 2"))).to_have_count(2)
    frequencies = await page.locator(".next li strong").all_inner_texts()
    assert sum(1 if frequency == "Once" else int(frequency.removesuffix(" times")) for frequency in frequencies) == 6
    beside = page.get_by_role("region", name="Rollouts side by side")
    await expect(beside.get_by_role("link", name="The rollout", exact=True)).to_be_visible()
    await expect(beside.get_by_text("replayed")).to_have_count(1)
    await visit.is_well_made(_WIDTHS)
    await beside.get_by_role("link", name=re.compile("^(Success|Failure) 1$")).click()
    await visit.settled()
    await expect(page.locator(".message.tool").first).to_contain_text("No emails.")


async def _be_refused(visit: Visit, database_url: str) -> None:
    """The continuation is of another question than its scenario has by now, so it cannot be replayed."""
    page = visit.page
    engine = make_engine(parse_url(database_url))
    async with engine.begin() as connection:
        changed_messages = "jsonb_set(messages, '{1,content}', '\"Another question?\"')"
        await connection.execute(text(f"UPDATE trajectory SET messages = {changed_messages} WHERE kind = 'what_if'"))
    await engine.dispose()
    await visit.button("What if at turn 2").click()
    await visit.button("Continue from here").click()
    await expect(page.get_by_role("alert")).to_contain_text("the replay differs in its opening messages")
    texts = page.locator(".both-texts dd")
    await expect(texts.first).to_have_text("Another question?")
    await expect(texts.nth(1)).not_to_have_text("Another question?")
    await visit.is_well_made(_WIDTHS)
    await visit.button("Close").click()
    await expect(visit.button("What if at turn 2")).to_be_focused()
    await visit.link("What if").click()
    await expect(page.get_by_role("heading", name="What if: from turn 2, edited")).to_be_visible()


async def _look_for_the_decisive_turn(visit: Visit) -> None:
    card = visit.page.get_by_role("region", name="Which turn decided it?")
    await expect(card.get_by_role("link", name="From turn 2, edited")).to_be_visible()
    await expect(card.locator(".turn-values")).to_have_count(0)  # what was edited says nothing of the rollout's turns
    await visit.button("Find the decisive turn").click()
    await expect(card.get_by_role("link", name="Search for the decisive turn")).to_be_visible()
    await expect(visit.button("Find the decisive turn")).to_be_enabled(timeout=_LONG_MS)
    await expect(card).to_contain_text(re.compile("Undecided: |decided it: "))
    await expect(card.get_by_role("row", name=re.compile(r"^turn 1 \d+% \d+% to \d+% of 16"))).to_be_visible()
    await visit.is_well_made(_WIDTHS)


async def _delete(visit: Visit) -> None:
    await visit.link("Search for the decisive turn").click()
    await visit.settled()
    await expect(visit.page.locator("div.verdict")).to_contain_text(re.compile("Undecided: |decided it: "))
    await visit.is_well_made(_WIDTHS)
    await visit.confirm("Delete")
    await expect(visit.page.get_by_role("heading", name="What happened")).to_be_visible()
    await expect(visit.link("Search for the decisive turn")).to_have_count(0)
    await expect(visit.link("From turn 2, edited")).to_be_visible()


_FEW = 8
"""Too few continuations to tell whether a turn decided the rollout, if they succeed as below."""


async def _continue_until_it_tells(visit: Visit, base: str, database_url: str, original: Any) -> None:
    """The page says how many more continuations would tell which turn decided it, and its button makes them."""
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
        for turn, successes in ((1, 5), (2, 2)):
            body = {"turn": turn, "samples": _FEW}
            posted = await client.post(f"/trajectories/{original['id']}/what-if", json=body)
            what_if = posted.raise_for_status().json()["evaluation_id"]
            await ended(client, what_if)
            among = "SELECT id FROM trajectory WHERE evaluation_id = :what_if ORDER BY id LIMIT :successes"
            outcome = f"UPDATE trajectory SET error = NULL, success = id IN ({among}) WHERE evaluation_id = :what_if"
            await execute(database_url, outcome, what_if=what_if, successes=successes)
    await execute(database_url, "UPDATE trajectory SET success = false WHERE id = :id", id=original["id"])
    await visit.open(base, f"/trajectories/{original['id']}")
    card = visit.page.get_by_role("region", name="Which turn decided it?")
    await expect(card).to_contain_text(re.compile(r"turn 1 changed most, and \d+ more continuations? would tell"))
    button = card.get_by_role("button", name=re.compile("^Make .* more continuation"))
    await expect(card).to_contain_text("from before turn 1 and turn 2")
    more = int("".join(filter(str.isdigit, await button.inner_text())))
    await visit.is_well_made(_WIDTHS)
    await button.click()
    for turn in (1, 2):
        row = card.get_by_role("row", name=re.compile(rf"^turn {turn} .* of {_FEW + more}\b"))
        await expect(row).to_be_visible(timeout=_LONG_MS)
