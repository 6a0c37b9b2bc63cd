"""The pages of a release: what a person sees while it runs, is held and has been taken back, and the buttons."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect
from sqlalchemy import func, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Release, ReleaseUnit
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.environment.json_type import Json
from tests.browser.visit import Visit
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.conftest import database
from tests.integration.app.release_stage import GOOD, MALFORMED, enroll, enroll_all, observe_all
from tests.integration.app.released_models import scripted_engine
from tests.integration.app.served import run_with, served, settings_for

if TYPE_CHECKING:
    from playwright.async_api import Locator

__all__ = ["database"]

pytestmark = pytest.mark.long

CANDIDATE, STABLE = Arm.CANDIDATE, Arm.STABLE
EVIL = "<img src=x onerror='globalThis.hacked=1'>\u202egnp"


@dataclass(frozen=True)
class Started:
    """A release of checkpoint 2 of `learnloop/m` against 0."""

    id: str
    run_id: str
    base: str


@asynccontextmanager
async def _release(data_dir: Path, database_url: str, **request: Json) -> AsyncIterator[Started]:
    settings = settings_for(data_dir, database_url)
    async with (
        scripted_chat(scripted_engine) as chat,
        served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client,
    ):
        posted = await client.post("/learn-loop", json={"iterations": 3, "model": {"name": "m"}})
        run_id = posted.raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        (await client.post("/models/learnloop/m/promote", json={"step": 0, "as": "live"})).raise_for_status()
        body = {"step": 2, "skip_trial": True, **request}
        accepted = await client.post("/promotions/learnloop/live/releases", json=body)
        yield Started(accepted.raise_for_status().json()["release_id"], run_id, str(client.base_url).rstrip("/"))


async def test_a_running_release_is_held_resumed_and_rolled_back_by_its_buttons(
    visit: Visit, data_dir: Path, database_url: str, database: Database
) -> None:
    page = visit.page
    async with _release(data_dir, database_url) as release:
        await enroll(database, release.id, CANDIDATE, [1.0, 0.5, None])
        await enroll(database, release.id, STABLE, [0.5, None])
        await visit.open(release.base, "/models")
        line = page.get_by_role("region", name="Promoted names").get_by_role("row").nth(1)
        await expect(line).to_contain_text("release: learnloop/m@2 against learnloop/m@0 5% of users running")
        await line.get_by_role("link", name="learnloop/m@2 against learnloop/m@0").click()
        await expect(page).to_have_url(f"{release.base}/ui/releases/{release.id}")
        await visit.settled()
        await _shows_a_running_release(visit, release)

        # What users meet meanwhile is seen without a reload.
        await observe_all(database, release.id, [(STABLE, GOOD, 380), (CANDIDATE, GOOD, 20)])
        await expect(page.locator("div.verdict")).to_contain_text("The share becomes 20% when 10 more users have met")
        malformed = _guardrails(visit).get_by_role("row", name="malformed replies")
        await expect(malformed).to_contain_text("0%of 200%of 380")

        await visit.button("Hold").click()
        await expect(page.locator("div.verdict")).to_have_text("The share is held: a person decided so.")
        await expect(visit.text("The share stays at 5% until a person resumes the release.")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("held")
        await visit.button("Resume").click()
        await expect(page.locator(".events li").first).to_contain_text("Resumed by local.")

        await visit.button("Roll back").click()
        question = page.get_by_role("alertdialog")
        await expect(question).to_contain_text("Every user gets learnloop/m@0 from the next request on.")
        await page.keyboard.press("Escape")
        await expect(question).to_have_count(0)
        await visit.button("Roll back").click()
        await question.get_by_label("End open sessions with the candidate").check()
        assert await visit.inaccessible() == []
        await question.get_by_role("button", name="Roll back").click()
        await expect(page.locator("div.verdict")).to_have_text("The candidate was taken back: a person decided so.")
        rolled_back = page.locator(".events li").first
        await expect(rolled_back).to_contain_text("Rolled back by local.")
        await expect(page.get_by_role("button", name=re.compile("Hold|Resume|Promote|Roll back"))).to_have_count(0)
        await visit.is_well_made()


async def _shows_a_running_release(visit: Visit, release: Started) -> None:
    page = visit.page
    await expect(page.locator("div.verdict")).to_have_text(
        "The share becomes 20% when 30 more users have met the candidate and an increase of errors, questions "
        "asked back, malformed replies and thumbs down within an hour above 10 points is ruled out."
    )
    step = page.get_by_role("region", name="Ramp").locator("[aria-current=step]")
    await expect(step).to_contain_text("5% since")
    arms = page.get_by_role("table", name="Both arms")
    await expect(arms.get_by_role("row", name="candidate")).to_contain_text("32 closed, 1 open0.7500")
    await expect(arms.get_by_role("row", name="stable")).to_contain_text("21 closed, 1 open0.5000")
    run = arms.get_by_role("link", name="iteration 2 of a run")
    await expect(run).to_have_attribute("href", re.compile(release.run_id))
    await expect(_guardrails(visit).get_by_role("row")).to_have_count(5)
    errors = _guardrails(visit).get_by_role("row", name="errors")
    await expect(errors).to_contain_text("+2 points1.0 of 4001.0 of 20that it is below +10 points")
    await expect(_card(visit, "Quality")).to_contain_text("too few windows are closed")
    await expect(_card(visit, "Forecast at the start")).to_contain_text("nothing can be forecast")
    await expect(page.locator(".events li")).to_contain_text("5% of the users meet the candidate, without a trial")
    await visit.is_well_made()


async def test_a_release_that_a_guardrail_took_back_says_why(
    visit: Visit, data_dir: Path, database_url: str, database: Database
) -> None:
    page = visit.page
    async with _release(data_dir, database_url) as release:
        # The newest units are fine: this is not the breaker's.
        answers = [(STABLE, GOOD, 950), (CANDIDATE, MALFORMED, 20), (CANDIDATE, GOOD, 30)]
        await observe_all(database, release.id, answers)
        await visit.open(release.base, f"/releases/{release.id}")
        await expect(page.locator("div.verdict")).to_contain_text(
            "worse than the stable checkpoint by more than a guardrail"
        )
        why = re.compile(r"Rolled back: malformed replies 0% → 40%, evidence over 1,000,000 of 400\.")
        await expect(page.locator("div.verdict + p")).to_have_text(why)
        await expect(page.locator(".events li.bad")).to_contain_text(why)
        await expect(_guardrails(visit).locator(".fill.bad")).to_have_count(1)
        step = page.get_by_role("region", name="Ramp").locator("[aria-current=step]")
        await expect(step).to_contain_text("Rolled back")
        await page.emulate_media(color_scheme="dark")
        await visit.is_well_made()
        await visit.go("/models")
        await expect(page.get_by_role("region", name="Promoted names")).not_to_contain_text("against")
        listed = page.get_by_role("region", name="Releases, newest first").get_by_role("row").nth(1)
        await expect(listed).to_contain_text("rolled back")
        await listed.get_by_role("link", name="learnloop/m@2").click()
        await expect(page.locator("div.verdict")).to_contain_text("was taken back")


async def test_a_release_that_outcomes_promoted_says_by_how_much_users_are_better_off(
    visit: Visit, data_dir: Path, database_url: str, database: Database
) -> None:
    page = visit.page
    rules = {"ramp": [0.5], "goal": "better", "outcome": {"value": "resolved"}}
    async with _release(data_dir, database_url, **rules) as release:
        open_windows: list[float | None] = [None] * 30
        good = {CANDIDATE: 150, STABLE: 90}
        arms = {arm: open_windows + [1.0] * count + [0.0] * (200 - count) for arm, count in good.items()}
        await visit.open(release.base, f"/releases/{release.id}")
        await expect(page.locator("div.verdict")).to_contain_text("unless outcomes show that the candidate is better")
        await enroll_all(database, release.id, arms)
        async with database.begin() as tx:  # look at it now
            await tx.execute(update(Release).values(looked_at=func.now() - timedelta(minutes=2)))
        await expect(page.locator("div.verdict")).to_have_text("The candidate was promoted.")
        quality = re.compile(r"Better for users: \+30\.0 points of `resolved` \(95% interval \+.+, at every look\)\.")
        await expect(page.locator(".events li").first).to_contain_text(quality)
        await expect(_card(visit, "Quality")).to_contain_text(quality)
        await expect(_card(visit, "Quality")).to_contain_text("So far measured on 0 new users")
        async with database.begin() as tx:
            of_release = update(ReleaseUnit).values(exposed_at=func.now() - timedelta(days=15))
            await tx.execute(of_release.where(ReleaseUnit.look.is_(None)))
            await tx.execute(update(Release).values(looked_at=func.now() - timedelta(minutes=2)))
        await expect(page.locator("div.verdict")).to_contain_text("users who had no part in that decision confirmed it")
        await expect(_card(visit, "Quality")).to_contain_text("Confirmed by 60 new users: +0.0")
        await expect(page.locator(".events li").first).to_contain_text("Confirmed by users who had no part")
        await visit.is_well_made()


async def test_promoting_says_that_nothing_was_shown_and_names_are_text(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    page = visit.page
    async with _release(data_dir, database_url, outcome={"value": EVIL}) as release:
        await visit.open(release.base, f"/releases/{release.id}")
        await expect(_card(visit, "Both arms")).to_contain_text("<img src=x onerror=")
        assert "\u202e" not in await page.locator("main").inner_text()
        assert not await page.evaluate("() => 'hacked' in globalThis")
        await visit.button("Promote").click()
        question = page.get_by_role("alertdialog")
        await expect(question).to_contain_text("outcomes did not decide it")
        await question.get_by_role("button", name="Promote").click()
        await expect(page.locator("div.verdict")).to_have_text("The candidate was promoted.")
        await expect(page.locator(".events li").first).to_contain_text("Promoted by local. Nothing was shown")
        await visit.go("/models")
        names = page.get_by_role("region", name="Promoted names")
        await names.get_by_role("link", name="a release").click()
        await expect(page).to_have_url(f"{release.base}/ui/releases/{release.id}")


def _guardrails(visit: Visit) -> "Locator":
    return visit.page.get_by_role("table", name="Guardrails")


def _card(visit: Visit, title: str) -> "Locator":
    return visit.page.locator(".card").filter(has=visit.page.get_by_role("heading", name=title, exact=True))
