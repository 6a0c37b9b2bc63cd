"""The price of machine time, where the operator has set one: in a run's cost, its ledger and its report."""

from pathlib import Path

import pytest

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.test_run_commands import run_command

PER_SECOND = 3600.0
"""Price per hour at which a second costs a dollar."""


async def test_machine_time_has_a_price(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, machine_price_per_hour=PER_SECOND)
    async with served(settings, ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        cost = (await run_with(client, run_id, "completed"))["cost"]
        assert cost["machine_usd"] == pytest.approx(cost["seconds"])
        assert cost["machine_usd"] > 1  # two iterations with a second of rollouts each, as scripted
        ledger = (await client.get(f"/runs/{run_id}/ledger")).json()
        assert ledger["totals"]["machine_usd"] == pytest.approx(cost["machine_usd"])
        assert [row["machine_usd"] for row in ledger["items"]] == [row["seconds"] for row in ledger["items"]]
        report = (await client.get(f"/runs/{run_id}/report", params={"form": "html"})).text
        assert f"<dd>${cost['machine_usd']:.2f} at $3,600.00 an hour</dd>" in report
        assert f"${cost['machine_usd']:.2f} for " in (await run_command(client, "show", run_id)).stdout


async def test_without_a_price_there_is_no_figure(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        assert (await run_with(client, run_id, "completed"))["cost"]["machine_usd"] is None
        assert "machine time" not in (await client.get(f"/runs/{run_id}/report", params={"form": "html"})).text
