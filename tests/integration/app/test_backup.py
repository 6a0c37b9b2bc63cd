"""The promise of docs/operations.md: a copy of the data directory of a stopped service is a whole backup."""

import asyncio
import shutil
from pathlib import Path

from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fakes.webhook_receiver import receiver
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


async def test_events_that_happen_again_in_a_restored_copy_are_sent_under_the_same_ids(data_dir: Path) -> None:
    original, copy = data_dir / "original", data_dir / "copy"
    deliveries = list[list[tuple[str, str]]]()
    async with receiver() as frontend:
        more = {"allowed_private_hosts": "127.0.0.1"}
        async with served(settings_for(original, None, max_concurrent_runs=0, **more), ScriptedLoop()) as client:
            (await client.post("/webhooks", json={"url": frontend.url})).raise_for_status()
            run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
            await until(lambda: frontend.received, timeout_s=30)
        copying = await asyncio.create_subprocess_exec("cp", "-a", str(original), str(copy))
        assert await copying.wait() == 0
        for directory in (original, copy):
            frontend.received.clear()
            async with served(settings_for(directory, None, **more), ScriptedLoop()) as client:
                await run_with(client, run_id, "completed")
                await until(
                    lambda: frontend.received and frontend.received[-1][2]["type"] == "run.completed", timeout_s=30
                )
            deliveries.append([(headers["webhook-id"], body["type"]) for _, headers, body in frontend.received])
    assert deliveries[0] == deliveries[1]
    assert len({id for id, _ in deliveries[0]}) == len(deliveries[0]) > 3
