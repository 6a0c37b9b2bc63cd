"""Makes the pictures of the README and the documentation: a real run of the demo, in a headless Chromium.

    python -m scripts.docs_pictures

Runs `learnloop demo` in a directory of its own, unless a run there has completed; that takes minutes.
"""

import asyncio
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from learnloop_service.app.cli.client import PATIENCE_S, Service
from learnloop_service.app.cli.report import write_report
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.json_type import Json

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH = 1280
_RUN = "/ui/runs/{}"
_REPORT_HEIGHT = 800


def completed_run(service: Service) -> Json | None:
    """Return the newest completed run."""
    runs = service.runs(1, status="completed")
    return runs[0] if runs else None


async def take_pictures(browser: "Browser", service: Service, run: Json, folder: Path) -> list[Path]:
    """Write all pictures of a completed run to the folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    context = await browser.new_context(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
    page = await context.new_page()
    url = service.url + _RUN.format(run["run_id"])
    rollout = await asyncio.to_thread(_instructive, service, run)
    pictures = [
        await _picture(page, url, folder / "run.png", height=1010),
        await _picture(page, f"{url}/trajectories/{rollout}", folder / "trajectory.png", press="tokens"),
        await _picture(page, f"{url}/held-out", folder / "film.png", height=1440),
    ]
    report = folder / "report.html"
    await asyncio.to_thread(_write_report, service, run["run_id"], report)
    await page.set_viewport_size({"width": WIDTH, "height": _REPORT_HEIGHT})
    await page.goto(report.absolute().as_uri())
    await page.screenshot(path=folder / "report.png")
    report.unlink()
    await context.close()
    return [*pictures, folder / "report.png"]


def _write_report(service: Service, run_id: str, file: Path) -> None:
    with Service(service.url, timeout_s=PATIENCE_S) as patient:
        write_report(patient, run_id, file)


def _instructive(service: Service, run: Json) -> str:
    """Return the id of a successful training rollout with many turns, of an iteration in the middle."""
    middle = (run["progress"]["iterations_done"] + 1) // 2
    rows = [row for row in service.trajectories(run["run_id"], iteration=middle) if row["kind"] == "train"]
    return str(max(rows, key=lambda row: (bool(row["success"]), row["turns"]))["id"])


async def _picture(page: "Page", address: str, file: Path, *, height: int = 900, press: str | None = None) -> Path:
    """Take a picture of a page of the dashboard, after pressing the button with that word."""
    await page.set_viewport_size({"width": WIDTH, "height": height})
    await page.goto("about:blank")
    await page.goto(address)
    await page.locator("main h1").wait_for()
    await page.wait_for_function("() => !document.querySelector('main .loading')")
    button = page.locator("main button", has_text=press)
    if press is not None and await button.count():  # a backend that reports no log-probabilities has no such button
        await button.first.click()
        await page.wait_for_function("() => !document.querySelector('main .loading')")
    await page.screenshot(path=file)
    return file


async def _with_browser(service: Service, run: Json, folder: Path) -> None:
    from playwright.async_api import async_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium is on PATH (Debian and Ubuntu: apt-get install chromium).")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for file in await take_pictures(browser, service, run, folder):
            print(f"wrote {file}")
        await browser.close()


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path, default=Path(".learnloop/demo"), help="where the demo's run is")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    options = parser.parse_args()
    with own_service(options.data_dir, waiting=lambda what: None) as service:
        run = completed_run(service)
    if run is None:
        command = [
            sys.executable,
            "-m",
            "learnloop_service.app.cli",
            "demo",
            "--no-keep",
            "--data-dir",
            str(options.data_dir),
        ]
        subprocess.run(command, check=True)
    with own_service(options.data_dir, waiting=lambda what: None) as service:
        run = completed_run(service)
        assert run is not None, "the demo has completed"
        asyncio.run(_with_browser(service, run, options.out))


if __name__ == "__main__":
    main()
