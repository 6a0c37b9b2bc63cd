"""A service that requires keys asks for one, keeps it where no script reads it, and shows what the key may see."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from learnloop_service.app.auth.scopes import Scope
from tests.browser.visit import Visit
from tests.integration.app.keyed import bearer, keyed

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


async def test_code_to_copy_has_the_key_where_one_is_required(visit: Visit, data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, max_concurrent_runs=0) as service:
        key, url = (await service.new()).key, str(service.client.base_url).rstrip("/")
        started = await service.client.post("/learn-loop", json={}, headers=bearer(key))
        await visit.open(url, f"/runs/{started.json()['run_id']}/request")
        await visit.page.get_by_label("API key").fill(key)
        await visit.button("Sign in").click()
        code = visit.page.locator(".as-code pre")
        await expect(code).to_contain_text(f'curl {url}/learn-loop \\\n  -H "Authorization: Bearer $LEARNLOOP_API_KEY"')
        await visit.button("Python").click()
        await expect(code).to_contain_text("""headers={"Authorization": f"Bearer {os.environ['LEARNLOOP_API_KEY']}"}""")
        compile(await code.inner_text(), "the page's code", "exec")
