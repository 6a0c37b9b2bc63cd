"""A visitor of the dashboard, who notices what no page may do."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Request

_AXE = (Path(__file__).parent / "axe.min.js").read_text(encoding="utf-8")
_GO = """place => new Promise((resolve) => {
  const link = document.createElement("a");
  link.href = `ui${place}`;
  document.body.append(link);
  link.click();
  link.remove();
  requestAnimationFrame(() => setTimeout(resolve));
})"""
"""Resolves when the page of the new place has begun to load: the effects of drawing it run after the next frame."""
_FAULTS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes: [{ html, failureSummary }] }) => `${id}: ${html.slice(0, 200)} ${failureSummary.slice(0, 300)}`);
}"""
"""What axe-core finds, chosen in the page: its full report takes longer to read than to make."""
_TRIES = 5
PATIENCE_MS = 120_000
"""Long enough for a machine that does something else, too. What comes sooner is seen sooner."""


@dataclass
class Visit:
    """A page and what went wrong in it: errors, dialogs, requests to elsewhere, refusals by the policy."""

    page: "Page"
    base: str = ""
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._look)
        self.page.on("console", self._hear)

    def _look(self, request: "Request") -> None:
        if urlsplit(request.url).scheme in ("http", "https") and not request.url.startswith(self.base):
            self.problems.append(f"asks for {request.url}")

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.problems.append(message.text)

    async def open(self, base: str, place: str = "") -> None:
        """Load the dashboard at a place, such as `/runs/ID`."""
        self.base = base
        for _ in range(_TRIES):  # Chromium gives up its requests when an interface of this machine comes or goes
            await self.page.goto("about:blank")
            await self.page.goto(f"{base}/ui{place}")
            if await self.page.locator("main").count():  # modules have run when a page is loaded
                break
        await self.settled()

    async def go(self, place: str) -> None:
        """Go to a place within the loaded dashboard."""
        await self.page.evaluate(_GO, place)
        await self.settled()

    async def settled(self) -> None:
        """Wait until nothing is loading."""
        await self.page.locator("main").wait_for()
        await self.page.wait_for_function("() => !document.querySelector('main .loading')")

    def text(self, text: str | re.Pattern[str]) -> "Locator":
        """Where a text is to be seen. For a moment a page can say it twice, which is no fault."""
        return self.page.get_by_text(text).filter(visible=True).first

    def button(self, name: str) -> "Locator":
        return self.page.get_by_role("button", name=name, exact=True)

    async def confirm(self, name: str) -> None:
        """Press the button, and the one of that name in the question that comes."""
        await self.button(name).click()
        await self.page.get_by_role("alertdialog").get_by_role("button", name=name, exact=True).click()

    def link(self, name: str) -> "Locator":
        return self.page.get_by_role("link", name=name, exact=True)

    async def is_well_made(self, widths: Sequence[int] = (1440, 820, 390)) -> None:
        """Assert that nothing is wider than the screen, and that axe finds nothing, at each width."""
        for width in widths:
            await self.page.set_viewport_size({"width": width, "height": 900})
            await self.page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
            assert await self.inaccessible() == [], width
        await self.page.set_viewport_size({"width": 1280, "height": 900})

    async def inaccessible(self) -> list[str]:
        """What axe-core finds serious or critical."""
        if not await self.page.evaluate("() => 'axe' in globalThis"):
            await self.page.evaluate(_AXE)
        return list(await self.page.evaluate(_FAULTS))
