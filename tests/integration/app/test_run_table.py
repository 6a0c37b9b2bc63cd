"""The list of runs as a table: names, tags and stars, sorted and filtered by the database, seeds as one entry."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, update

from learnloop_service.app.db.tables import LedgerEntry, Run
from learnloop_service.app.runs.run_list import SortBy
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.many_runs import NOW, SCENARIOS, insert_runs
from tests.integration.app.served import served, settings_for
from tests.opened_database import opened_database


@dataclass
class Table:
    """A service with the runs, and a client of it."""

    client: httpx.AsyncClient

    async def page(self, **query: Any) -> Any:
        return (await self.client.get("/runs", params=query)).raise_for_status().json()

    async def items(self, **query: Any) -> list[Any]:
        rows: list[Any] = (await self.page(**query))["items"]
        return rows

    async def by_pages(self, limit: int, **query: Any) -> list[Any]:
        rows: list[Any] = []
        cursor = None
        while True:
            page = await self.page(limit=limit, **query, **({"cursor": cursor} if cursor else {}))
            rows += page["items"]
            if (cursor := page["next_cursor"]) is None:
                return rows

    async def edit(self, run_id: str, **change: Any) -> httpx.Response:
        return await self.client.patch(f"/runs/{run_id}", json=change)


@pytest.fixture
async def table(data_dir: Path, database_url: str) -> AsyncIterator[Table]:
    await insert_runs(database_url)
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        yield Table(client)


def _names(items: Sequence[Any]) -> list[str]:
    return [item["model"]["name"] for item in items]


async def test_runs_are_sorted_by_their_verdicts_figures(table: Table) -> None:
    runs = await table.items(sort="gain")
    assert _names(runs) == ["steep-1", "steep-0", "steep-2", "flat-3", "fell-4", "early-5"]
    points = [run["verdict"]["points"] for run in runs]
    assert points == [pytest.approx(100 * rise / SCENARIOS, abs=0.1) for rise in (18, 15, 12, 1, -6)] + [None]
    assert _names(await table.items(sort="gain", ascending=True))[0] == "fell-4"
    assert _names(await table.items(sort="gain", ascending=True))[-1] == "early-5"
    states = [run["verdict"]["state"] for run in await table.items(sort="verdict")]
    assert states == ["learned"] * 3 + ["no_change_shown", "got_worse", "too_early"]
    assert _names(await table.items(sort="success"))[-1] == "fell-4"
    assert _names(await table.items(sort="time"))[-1] == "flat-3"
    assert _names(await table.items(sort="learning_rate", ascending=True))[0] in ("flat-3", "fell-4")


async def test_pages_of_every_order_have_every_run_once(table: Table) -> None:
    for sort, ascending, fold in product(SortBy, (False, True), (False, True)):
        query = {"sort": sort, "ascending": ascending, "fold": fold}
        whole = [row["run_id"] for row in await table.items(**query)]
        assert len(whole) == (4 if fold else 6)
        assert [row["run_id"] for row in await table.by_pages(3, **query)] == whole, query


async def test_runs_that_differ_in_their_seed_are_one_entry(table: Table) -> None:
    steep, *others = await table.items(sort="gain", fold=True)
    assert steep["model"]["name"] == "steep-2"  # the newest
    assert [other["same_settings"] for other in others] == [None] * 3
    same = steep["same_settings"]
    assert (same["runs"], same["first"], same["verdicts"], same["statuses"]) == (
        3,
        0.25,
        {"learned": 3},
        {"completed": 3},
    )
    assert same["means"]["gain"] == pytest.approx(100 * 15 / SCENARIOS)
    assert same["means"]["tokens"] == 1000
    assert (same["gain_low"], same["gain_high"]) == pytest.approx((50, 75))
    assert same["gain_sd"] == pytest.approx(12.5)
    members = await table.items(settings_hash=steep["settings_hash"])
    assert [(member["seed"], member["same_settings"]) for member in members] == [(2, None), (1, None), (0, None)]
    # Filters come first: the others of its settings are not counted.
    [entry] = await table.items(search="steep-1", fold=True)
    assert entry["same_settings"] is None


async def test_a_list_is_limited_to_a_period_and_says_what_seeds_cost_together(table: Table, database_url: str) -> None:
    runs = await table.items()
    costs = {"steep-0": 0.25, "steep-1": 0.5, "flat-3": 2.0}
    spent = {"iteration": 0, "phase": "rollout", "seconds": 1.0, "prompt_tokens": 1, "completion_tokens": 1}
    ids = {run["model"]["name"]: run["run_id"] for run in runs}
    async with opened_database(database_url) as database, database.begin() as tx:
        ledger = [spent | {"run_id": ids[name], "usd": usd, "wasted": False} for name, usd in costs.items()]
        await tx.execute(insert(LedgerEntry), ledger)
        await tx.execute(update(Run).where(Run.id == ids["steep-0"]).values(created_at=NOW))
    folded = {run["model"]["name"]: run for run in await table.items(fold=True)}
    assert folded["steep-2"]["same_settings"]["cost_usd"] == 0.75  # one of the three has cost nothing yet
    since = (NOW + timedelta(seconds=1)).isoformat()
    assert set(_names(await table.items(since=since))) == set(ids) - {"steep-0"}
    later = {run["model"]["name"]: run for run in await table.items(fold=True, since=since)}
    assert later["steep-2"]["same_settings"]["runs"] == 2
    assert later["steep-2"]["same_settings"]["cost_usd"] == 0.5
    assert len(await table.items(since=NOW.isoformat())) == len(runs)
    naive = await table.client.get("/runs", params={"since": "2026-01-02T00:00:00"})
    assert naive.status_code == 422


async def test_a_run_is_named_tagged_annotated_and_starred(table: Table) -> None:
    run_id = (await table.items(search="flat"))[0]["run_id"]
    change = {
        "name": "a lower rate",
        "tags": ["paper", "lr", "paper"],
        "notes": "Warm-up is too short.\nAgain.",
        "starred": True,
    }
    edited = (await table.edit(run_id, **change)).raise_for_status().json()
    assert {name: edited[name] for name in change} == change | {"tags": ["paper", "lr"]}
    run = (await table.client.get(f"/runs/{run_id}")).json()
    assert (run["name"], run["starred"], run["request"]["model"]["name"]) == ("a lower rate", True, "flat-3")
    assert (await table.edit(run_id, starred=False)).json()["tags"] == ["paper", "lr"]
    for query in (
        {"tag": "lr"},
        {"search": "LOWER"},
        {"search": "pape"},
        {"sort": "name", "ascending": True, "limit": 1},
    ):
        assert [row["run_id"] for row in await table.items(**query)] == [run_id], query
    assert await table.items(tag="l") == await table.items(starred=True) == []
    assert len(await table.items(starred=False)) == 6
    assert (await table.edit(run_id, name=None)).json()["name"] is None


BAD_EDITS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "body", "Give at least one of name, tags, notes and starred."),
    ({"title": "x"}, "body.title", "Unknown field"),
    ({"name": "a\nb"}, "body.name", "A name is one line without spaces at its ends."),
    ({"name": " "}, "body.name", "A name is one line"),
    ({"name": "n" * 101}, "body.name", "100 characters"),
    ({"tags": ["two words"]}, "body.tags", "A tag has no spaces and commas, unlike 'two words'"),
    ({"tags": ["t"] * 21}, "body.tags", "20 items"),
    ({"tags": ["t" * 41]}, "body.tags.0", "40 characters"),
    ({"notes": "n" * 10_001}, "body.notes", "10000 characters"),
    ({"starred": None}, "body.starred", "boolean"),
]


async def test_a_bad_edit_is_refused(table: Table) -> None:
    [newest] = await table.items(limit=1)
    for change, where, message in BAD_EDITS:
        reply = await table.edit(newest["run_id"], **change)
        assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
        [fault] = reply.json()["errors"]
        assert ".".join(map(str, fault["loc"])) == where
        assert message.lower() in fault["msg"].lower()
    assert (await table.edit("nobody", starred=True)).status_code == 404


async def test_a_cursor_of_another_order_is_refused(table: Table) -> None:
    cursor = (await table.page(sort="gain", limit=2))["next_cursor"]
    others: list[dict[str, Any]] = [{"sort": "name"}, {"sort": "gain", "ascending": True}, {"sort": "success"}, {}]
    for query in others:
        reply = await table.client.get("/runs", params={**query, "cursor": cursor})
        assert reply.status_code == 422, query
        assert "does not belong to this list" in reply.json()["detail"]
    for cursor in ("bm8", "W10=", "AAAA", (await table.page(limit=2))["next_cursor"]):
        assert (await table.client.get("/runs", params={"sort": "gain", "cursor": cursor})).status_code == 422
