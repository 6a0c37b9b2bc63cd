"""The promise of docs/operations.md: a copy of the data directory of a stopped service is a whole backup."""

import asyncio
import shutil
from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for


async def test_a_copy_of_the_directory_of_a_stopped_service_is_whole(data_dir: Path) -> None:
    original, copy = data_dir / "original", data_dir / "restored" / "elsewhere"
    async with served(settings_for(original, None), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        run = await run_with(client, run_id, "completed")
        events = (await client.get(f"/runs/{run_id}/events")).json()
        hook = (await client.post("/webhooks", json={"url": "https://93.184.216.34/hook"})).json()
    copy.parent.mkdir()
    copying = await asyncio.create_subprocess_exec("cp", "-a", str(original), str(copy))
    assert await copying.wait() == 0
    shutil.rmtree(original)
    async with served(settings_for(copy, None), ScriptedLoop()) as client:
        assert (await client.get(f"/runs/{run_id}")).json() == run
        assert (await client.get(f"/runs/{run_id}/events")).json() == events
        # The key that secrets are sealed with is in the directory.
        assert (await client.post(f"/webhooks/{hook['id']}/rotate-secret")).status_code == 200
        again = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        assert (await run_with(client, again, "completed"))["status"] == "completed"
