"""The list of runs as a dashboard reads it: searched, and with learning curves."""

from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for


async def test_runs_are_found_by_a_part_of_their_names(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for name in ("mail-agent", "100_percent"):
            body = {"iterations": 1, "model": {"name": name}}
            started = (await client.post("/learn-loop", json=body)).raise_for_status().json()
            await run_with(client, started["run_id"], "completed")

        async def names_matching(search: str) -> list[str]:
            page = (await client.get("/runs", params={"search": search})).raise_for_status().json()
            return [run["model"]["name"] for run in page["items"]]

        assert await names_matching("MAIL-") == ["mail-agent"]
        assert await names_matching("/100_") == ["100_percent"]
        assert await names_matching("email_search") == ["100_percent", "mail-agent"]
        assert await names_matching("_agent") == []  # no wildcard
        assert await names_matching("%") == []


async def test_a_run_is_listed_with_a_thinned_out_curve(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        started = (await client.post("/learn-loop", json={"iterations": 5})).raise_for_status().json()
        run = await run_with(client, started["run_id"], "completed")
        means = [point["rewards"]["mean"] for point in run["iterations"] if point["iteration"] > 0]
        assert len(means) == 5

        async def curve(**query: int) -> list[float] | None:
            page = (await client.get("/runs", params=query)).raise_for_status().json()
            points: list[float] | None = page["items"][0]["curve"]
            return points

        assert await curve() is None
        assert await curve(curve=5) == means
        assert await curve(curve=3) == means[::2]
        assert await curve(curve=2) == means[::3]


async def test_a_run_names_its_newest_event(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        started = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()
        run = await run_with(client, started["run_id"], "completed")
        events = (await client.get(f"/runs/{started['run_id']}/events", params={"limit": 200})).json()["items"]
        assert run["last_event"] == events[-1]["seq"] == len(events)
