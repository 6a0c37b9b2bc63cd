"""The dialog that promotes a checkpoint: to everybody, after a trial, or to a share of the users first."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.browser.visit import Visit
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.released_models import scripted_engine
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Stage:
    """A completed run of three iterations, whose checkpoint 0 is `learnloop/live`."""

    client: httpx.AsyncClient
    run_id: str

    @property
    def base(self) -> str:
        return str(self.client.base_url).rstrip("/")


@pytest_asyncio.fixture(loop_scope="session")
async def stage(data_dir: Path, database_url: str) -> AsyncIterator[Stage]:
    async with (
        scripted_chat(scripted_engine) as chat,
        served(settings_for(data_dir, database_url), ScriptedLoop(), ScriptedBackend(chat.url)) as client,
    ):
        posted = await client.post("/learn-loop", json={"iterations": 3, "model": {"name": "m"}})
        run_id = posted.raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        (await client.post("/models/learnloop/m/promote", json={"step": 0, "as": "live"})).raise_for_status()
        yield Stage(client, run_id)


async def _dialog(visit: Visit, stage: Stage) -> Locator:
    await visit.open(stage.base, f"/runs/{stage.run_id}")
    await visit.button("Promote").click()
    dialog = visit.page.get_by_role("dialog", name="Promote a checkpoint")
    await expect(dialog).to_contain_text("Today it means learnloop/m@0.")
    return dialog


async def test_a_checkpoint_is_released_to_a_share_of_the_users(visit: Visit, stage: Stage) -> None:
    dialog = await _dialog(visit, stage)
    await dialog.get_by_role("radio", name="A share of the users first").check()
    share = dialog.get_by_role("textbox", name="Share of the users, in percent")
    await expect(share).to_have_value("5")
    await expect(dialog).to_contain_text("The others keep learnloop/m@0.")
    for scheme in ("light", "dark"):
        await visit.page.emulate_media(color_scheme=scheme)
        await visit.is_well_made((1280, 390))
    await share.fill("80")
    await visit.button("Start the release").click()
    await expect(share).to_have_attribute("aria-invalid", "true")
    await share.fill("7")
    await dialog.get_by_label("A trial on held-out scenarios comes first").uncheck()
    await visit.button("Start the release").click()
    await expect(dialog.get_by_role("status")).to_contain_text(
        "7% of the users of learnloop/live now meet step 3; the others keep learnloop/m@0."
    )
    await expect(dialog).to_contain_text("the guardrail slow is not watched")  # its owner should know
    assert await visit.inaccessible() == []
    await visit.link("See the release").click()
    await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("learnloop/m@3 for learnloop/live")
    [release] = (await stage.client.get("/releases")).raise_for_status().json()["items"]
    whole = (await stage.client.get(f"/releases/{release['release_id']}")).raise_for_status().json()
    assert (whole["state"], whole["rules"]["ramp"], whole["rules"]["skip_trial"]) == ("running", [0.07, 0.2, 0.5], True)

    dialog = await _dialog(visit, stage)
    await expect(dialog).to_contain_text("learnloop/live has a release already: learnloop/m@3 against learnloop/m@0")
    await expect(dialog.get_by_role("radio", name="A share of the users first")).to_be_disabled()
    await visit.button("Promote it").click()
    await expect(dialog.get_by_role("alert")).to_contain_text(release["release_id"])


async def test_the_dialog_says_why_there_is_no_release(visit: Visit, stage: Stage) -> None:
    dialog = await _dialog(visit, stage)
    release, name = dialog.get_by_role("radio", name="A share of the users first"), dialog.get_by_label("Name")
    await release.check()
    await name.fill("next one")
    await expect(dialog).to_contain_text("Nothing is promoted as learnloop/next one yet, so it has no users.")
    await expect(release).to_be_disabled()
    await expect(dialog.get_by_role("radio", name="Everybody, now")).to_be_checked()
    await visit.button("Promote it").click()
    await expect(name).to_have_attribute("aria-invalid", "true")  # a name has no spaces
    await name.fill("live")
    await dialog.get_by_label("Checkpoint").select_option("0")
    await expect(dialog).to_contain_text("learnloop/live means this checkpoint already.")
    await dialog.get_by_label("Checkpoint").select_option("2")
    await release.check()
    await visit.button("Start the release").click()
    await expect(dialog.get_by_role("status")).to_contain_text(
        "A trial comes first. Unless it refuses step 2, 5% of the users of learnloop/live meet it then"
    )


async def test_a_trial_decides_whether_the_name_is_given(visit: Visit, stage: Stage) -> None:
    dialog = await _dialog(visit, stage)
    await dialog.get_by_role("radio", name=re.compile("if a trial shows")).check()
    await dialog.get_by_label("Name").fill("next")
    await expect(dialog.get_by_label("Better than")).to_have_value("live")
    await visit.button("Start the trial").click()
    await expect(dialog.get_by_role("status")).to_contain_text("If step 3 wins, learnloop/next means it.")
    await dialog.get_by_role("link", name="see it").click()
    await expect(visit.page).to_have_url(re.compile("/ui/evaluations/"))
    await expect(visit.page.get_by_role("heading", level=1)).to_contain_text("completed")
    [promoted] = (await stage.client.get("/promotions/learnloop/next")).raise_for_status().json()["items"]
    assert promoted["step"] == 3


async def test_a_checkpoint_is_promoted_with_another_prompt(visit: Visit, stage: Stage) -> None:
    stored = await stage.client.post("/prompts", params={"name": "kind"}, json={"parts": {"system": "Be kind."}})
    stored.raise_for_status()
    dialog = await _dialog(visit, stage)
    prompt, release = dialog.get_by_label("Prompt"), dialog.get_by_role("radio", name="A share of the users first")
    await dialog.get_by_label("Checkpoint").select_option("0")
    await expect(release).to_be_disabled()
    await prompt.select_option("kind@1")
    await expect(release).to_be_enabled()  # a prompt alone can be released
    for scheme in ("light", "dark"):
        await visit.page.emulate_media(color_scheme=scheme)
        await visit.is_well_made((1280, 390))
    await visit.button("Promote it").click()
    await expect(dialog.get_by_role("status")).to_contain_text("now means step 0 of learnloop/m with kind@1.")
    await expect(dialog).to_contain_text("never evaluated with the prompt kind@1")
    await visit.link("See all promoted names").click()
    await expect(visit.page.get_by_role("table", name="Promoted names")).to_contain_text("learnloop/m @0 with kind@1")
    await visit.is_well_made((1280, 390))


async def test_the_page_of_promoted_names_says_what_exploring_costs(visit: Visit, stage: Stage) -> None:
    await visit.open(stage.base, "/models")
    row = visit.page.get_by_role("row", name="learnloop/live")
    await expect(row).to_be_visible()
    await expect(row).not_to_contain_text("explore")
    set_to = await stage.client.post("/promotions/learnloop/live/explore", json={"share": 0.2})
    assert set_to.status_code == 200
    await visit.open(stage.base, "/models")
    await expect(row).to_contain_text("20% of the consented sessions explore. What exploring costs is not known")
