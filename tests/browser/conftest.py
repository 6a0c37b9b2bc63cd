"""A headless Chromium: the system's, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.browser.visit import PATIENCE_MS, Visit

if TYPE_CHECKING:  # its import takes half a second
    from playwright.async_api import Browser

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first of them takes half the processor time of the others, which have a whole browser behind the pages."""
CHROMIUM = next(filter(None, map(shutil.which, _PROGRAMS)), None)

_LONG = {"test_journey.py", "test_pages.py"}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """One for all tests, each of which has a context of its own in it: it takes seconds to start."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH (Debian: apt-get install chromium-headless-shell)")
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: "Browser") -> AsyncIterator[Visit]:
    """A visitor; at the end nothing may have gone wrong in the page."""
    # Without motion: what is half-way on the screen has other colours than axe may find.
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    made = Visit(await context.new_page())
    yield made
    await context.close()
    assert made.problems == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests run on the browser's event loop, and short ones one after the other in one browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if item.path.name not in _LONG:
                item.add_marker(pytest.mark.together("browser"))
