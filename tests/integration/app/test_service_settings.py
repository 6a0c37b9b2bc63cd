"""What the service runs with, for its operators, who change the price of its machine while it runs."""

from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.runs.cost import store_price
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY, bearer, keyed
from tests.integration.app.leased_work import claimed, queued, worker
from tests.integration.app.served import run_with, served, settings_for


async def _price_of_a_run(client: httpx.AsyncClient, id: str | None = None) -> float | None:
    """Return the price with which a run was completed: a new one, unless it is named."""
    if id is None:
        id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
    price: float | None = (await run_with(client, id, "completed"))["cost"]["machine_price_per_hour"]
    return price


async def _changed(client: httpx.AsyncClient, price: float | None) -> float | None:
    reply = await client.patch("/settings", json={"machine_price_per_hour": price})
    stored: float | None = reply.raise_for_status().json()["machine_price_per_hour"]
    return stored


async def test_the_price_changes_for_runs_that_begin_from_then_on(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/settings")).json()["machine_price_per_hour"] is None
        first = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        assert await _price_of_a_run(client, first) is None
        for price in (1.5, 3.0, None):
            assert await _changed(client, price) == price
            assert await _price_of_a_run(client) == price
            assert await _price_of_a_run(client, first) == 1.5  # the first price is also that of earlier runs


async def test_a_service_begins_with_the_price_that_it_was_started_with(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, machine_price_per_hour=2.0)
    async with served(settings, ScriptedLoop()) as client:
        assert await _changed(client, 5.0) == 5.0
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert await _price_of_a_run(client) == 5.0
    async with served(settings, ScriptedLoop()) as client:
        document = (await client.get("/settings")).json()
        assert (document["machine_price_per_hour"], document["machine_price_at_start"]) == (2.0, 2.0)
        assert await _price_of_a_run(client) == 2.0


@pytest.mark.parametrize(("price", "expected"), [(0.5, 0.5), (None, 4.0)])
async def test_a_worker_keeps_to_the_price_of_its_own_machine(
    database: Database, price: float | None, expected: float
) -> None:
    await store_price(database, 4.0)
    run_id = await queued(database)
    await claimed(worker(database, "a", price_per_hour=price))
    async with database() as tx:
        assert (await tx.execute(select(Run.machine_price_per_hour).where(Run.id == run_id))).scalar_one() == expected


async def test_settings_are_for_operators_of_the_whole_service(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, max_open_sessions=77) as service:
        reply = await service.client.get("/settings", headers=bearer(OPERATOR_KEY))
        items = {
            setting["variable"]: setting["value"] for group in reply.json()["groups"] for setting in group["items"]
        }
        assert items["LEARNLOOP_MAX_OPEN_SESSIONS"] == "77"
        assert items["LEARNLOOP_DATA_DIR"] == str(data_dir)
        assert (items["ART_PROJECT"], items["LEARNLOOP_KEEP_EVENTS_DAYS"]) == ("learnloop", None)
        for project, scopes in (("*", [Scope.READ, Scope.WRITE]), ("mail", list(Scope))):
            headers = await service.headers(project, scopes)
            for method, body in (("GET", None), ("PATCH", {"machine_price_per_hour": 1.0})):
                refused = await service.client.request(method, "/settings", headers=headers, json=body)
                assert refused.status_code == 403, refused.text
        for wrong in (
            {},
            {"machine_price_per_hour": 0},
            {"machine_price_per_hour": 1e-308},
            {"machine_price_per_hour": 1.0, "port": 1},
        ):
            refused = await service.client.patch("/settings", headers=bearer(OPERATOR_KEY), json=wrong)
            assert refused.status_code == 422, refused.text
