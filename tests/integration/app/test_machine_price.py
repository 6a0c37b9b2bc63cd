"""The price of machine time, where the operator has set one: in a run's cost, its ledger and its report."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.reports.verify import verified
from learnloop_service.judges.base import JudgeCall
from learnloop_service.training.types import IterationResult
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.changed_rows import change
from tests.integration.app.run_commands import run_command
from tests.integration.app.served import run_with, served, settings_for

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
        printed = (await run_command(client, "show", run_id)).stdout
        assert f"points for ${cost['total_usd']:.2f}: " in printed
        assert f"${cost['machine_usd']:.2f} for " in printed
        total = f"points for ${cost['total_usd']:.2f}</dd>"
        assert total in report
        forged = verified(report.replace(total, "points for $0.40</dd>"), None, None).differences["its own data"]
        assert [difference.other for difference in forged] == [f"0 {total.removesuffix('</dd>')}"]


async def test_a_run_keeps_the_price_that_held_when_it_ran(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        unpriced = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        assert (await run_with(client, unpriced, "completed"))["cost"]["total_usd"] is None
    for price in (PER_SECOND, 2 * PER_SECOND):  # the first price of the machine is also that of earlier runs
        settings = settings_for(data_dir, database_url, machine_price_per_hour=price)
        async with served(settings, ScriptedLoop()) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
            await run_with(client, run_id, "completed")
            prices = {id: (await client.get(f"/runs/{id}")).json()["cost"] for id in (unpriced, run_id)}
            assert [cost["machine_price_per_hour"] for cost in prices.values()] == [PER_SECOND, price]
    assert prices[unpriced]["total_usd"] == pytest.approx(prices[unpriced]["seconds"])


async def judged(*args: Any, **options: Any) -> AsyncGenerator[IterationResult, None]:
    """Follow the script, with a judge call in every iteration but the baseline."""
    async for result in ScriptedLoop()(*args, **options):
        calls = (JudgeCall("ruler", "m", 100, 10, 0.25, 1, 0.5),)
        yield replace(result, groups=tuple(replace(group, judge_calls=calls) for group in result.groups))


@pytest.mark.parametrize(
    ("statement", "differing"),
    [
        ("UPDATE run SET judge_cost_usd = 0.2", {"judge_cost_usd"}),
        ("UPDATE run SET judge_prompt_tokens = 99", {"judge_prompt_tokens"}),
        ("UPDATE ledger_entry SET usd = 0.2 WHERE usd IS NOT NULL", {"usd of the ledger"}),
        ("UPDATE ledger_entry SET seconds = 0.5 WHERE iteration = 1 AND phase = 'rollout'", {"seconds of the ledger"}),
        ("UPDATE judge_call SET cost_usd = 0.3", {"judge_cost_usd", "usd of the ledger"}),
    ],
)
async def test_the_cost_of_a_run_is_verified(
    data_dir: Path, database_url: str, statement: str, differing: set[str]
) -> None:
    settings = settings_for(data_dir, database_url, machine_price_per_hour=PER_SECOND)
    async with served(settings, judged) as client:  # type: ignore[arg-type]
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        as_it_is = await _verified(client, run_id)  # the figures of a scripted run do not follow from its rollouts
        await change(database_url, statement)
        assert await _verified(client, run_id) - as_it_is == differing
        assert not as_it_is & {"judge_cost_usd", "usd of the ledger", "seconds of the ledger", "cost_usd"}


async def _verified(client: httpx.AsyncClient, run_id: str) -> set[str]:
    """Return the names of the figures that differ."""
    report = (await client.get(f"/runs/{run_id}/verify")).raise_for_status().json()
    return {difference["what"] for difference in report["differences"]}


async def test_runs_are_listed_and_sorted_by_their_cost(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, machine_price_per_hour=PER_SECOND)
    async with served(settings, ScriptedLoop()) as client:
        for iterations in (1, 3, 2):
            accepted = (await client.post("/learn-loop", json={"iterations": iterations})).raise_for_status().json()
            await run_with(client, accepted["run_id"], "completed")
        listed = (await client.get("/runs", params={"sort": "cost"})).json()["items"]
        assert [run["progress"]["iterations_total"] for run in listed] == [3, 2, 1]
        cost = (await client.get(f"/runs/{listed[0]['run_id']}")).json()["cost"]["total_usd"]
        assert listed[0]["cost_usd"] == pytest.approx(cost)
        folded = (await client.get("/runs", params={"sort": "cost", "fold": True})).json()["items"]
        assert [run["run_id"] for run in folded] == [run["run_id"] for run in listed]
        assert f"${cost:.2f}" in (await run_command(client, "list")).stdout


async def test_without_a_price_there_is_no_figure(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        assert (await run_with(client, run_id, "completed"))["cost"]["machine_usd"] is None
        assert "machine time" not in (await client.get(f"/runs/{run_id}/report", params={"form": "html"})).text
