"""A service on loopback: open until the first key exists, and never open again."""

from pathlib import Path

from learnloop_service.app.auth.keys import Keys
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import bearer
from tests.integration.app.served import served, settings_for

_FIRST = {"name": "first", "project": "*", "scopes": ["read", "write", "operator"]}


async def test_the_first_key_closes_a_service_for_good(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop()) as client:
        assert (await client.get("/session")).json()["key_required"] is False
        forwarded = await client.get("/runs", headers={"x-forwarded-for": "203.0.113.9"})
        assert (forwarded.status_code, forwarded.headers["content-type"]) == (403, "application/problem+json")
        assert "x-forwarded-for" in forwarded.json()["detail"]
        first_key = (await client.post("/keys", json=_FIRST)).raise_for_status().json()
        assert (await client.get("/runs")).status_code == 401
        key = bearer(first_key["key"])
        assert (await client.get("/session", headers=key)).json()["key_required"] is True
        assert (await client.get("/runs", headers=key | {"x-forwarded-for": "203.0.113.9"})).status_code == 200
        assert (await client.delete(f"/keys/{first_key['id']}", headers=key)).status_code == 200
    async with served(settings, ScriptedLoop()) as client:
        assert (await client.get("/runs")).status_code == 401  # the only key is revoked, and nobody gets in instead


async def test_a_key_that_was_created_beside_the_service_counts_from_its_start(
    data_dir: Path, database_url: str, database: Database
) -> None:
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop()) as client:  # creates the tables
        assert (await client.get("/runs")).status_code == 200
    new = await Keys(database).create(project="mail", name="bootstrapped", scopes=Scope)
    async with served(settings, ScriptedLoop()) as client:
        assert (await client.get("/runs")).status_code == 401
        assert (await client.get("/runs", headers=bearer(new.key))).status_code == 200
        unlisted = {"judge": {"name": "ruler", "config": {"model": "openai/gpt-4.1-mini"}}}
        refused = await client.post("/learn-loop", json=unlisted, headers=bearer(new.key))
        assert "Unknown model" in refused.text  # where keys are required, only listed models can be named
    async with served(settings.model_copy(update={"require_keys": "never"}), ScriptedLoop()) as client:
        assert (await client.get("/runs")).status_code == 200
