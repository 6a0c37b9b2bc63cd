"""The command that makes the documentation's pictures still finds what it shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from learnloop_service.app.cli.client import Service
from scripts.docs_pictures import WIDTH, take_pictures
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.long


async def test_all_pictures_are_taken(browser: "Browser", data_dir: Path, database_url: str, tmp_path: Path) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 2, "model": {"name": "pictured"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed")
        with Service(str(client.base_url)) as service:
            files = await take_pictures(browser, service, run, tmp_path)
    assert {file.name for file in files} == {"run.png", "trajectory.png", "film.png", "report.png"}
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}
    for file in files:
        assert int.from_bytes(file.read_bytes()[16:20], "big") == WIDTH
