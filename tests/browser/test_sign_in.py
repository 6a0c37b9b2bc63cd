"""A service that requires keys asks for one, keeps it where no script reads it, and shows what the key may see."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from app.auth.scopes import Scope
from tests.browser.visit import Visit
from tests.integration.app.keyed import keyed

pytestmark = pytest.mark.long


async def test_the_page_asks_for_a_key_and_never_shows_or_keeps_it(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    async with keyed(data_dir, database_url) as service:
        page = visit.page
        key = (await service.new(scopes=(Scope.READ,))).key
        await visit.open(str(service.client.base_url).rstrip("/"), "/keys")
        await page.get_by_label("API key").fill("ll_wrong")
        await visit.button("Sign in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await visit.inaccessible() == []

        await page.get_by_label("API key").fill(key)
        await visit.button("Sign in").click()
        await expect(visit.text("Your key may not see this")).to_be_visible()
        await visit.go("/")
        await expect(visit.text("No runs yet")).to_be_visible()
        assert key not in page.url
        assert key not in await page.evaluate(
            "() => document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"
            " + document.documentElement.outerHTML"
        )

        await visit.button("Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()  # the service has answered
        await page.reload()
        await expect(page.get_by_label("API key")).to_be_visible()
