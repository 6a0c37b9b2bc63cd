"""A headless Chromium: the system's, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.visit import PATIENCE_MS, Visit

if TYPE_CHECKING:  # its import takes half a second
    from playwright.async_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
async def browser() -> AsyncIterator["Browser"]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH (Debian and Ubuntu: apt-get install chromium)")
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        await launched.close()


@pytest.fixture
async def visit(browser: "Browser") -> AsyncIterator[Visit]:
    """A visitor; at the end nothing may have gone wrong in the page."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    made = Visit(await context.new_page())
    yield made
    await context.close()
    assert made.problems == []
