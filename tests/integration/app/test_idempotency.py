"""Idempotency-Key: however often a request is sent, what it makes is made once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import OperationalError

from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import IdempotencyKey, Run
from learnloop_service.app.http import idempotency
from learnloop_service.app.runs.store import RunStore
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed
from tests.integration.app.served import served, settings_for


@pytest.fixture
async def service(data_dir: Path, database_url: str) -> AsyncIterator[Keyed]:
    async with keyed(data_dir, database_url) as keyed_service:
        yield keyed_service


async def _until_answered(client: httpx.AsyncClient, path: str, headers: dict[str, str], body: Any) -> httpx.Response:
    """As a client does it: again as long as the first request is under way."""
    while True:
        response = await client.post(path, headers=headers, json=body)
        if response.status_code != 409 or "retry-after" not in response.headers:
            return response


async def _runs(service: Keyed) -> int:
    async with service.database() as tx:
        return (await tx.execute(select(func.count()).select_from(Run))).scalar_one()


async def _age(service: Keyed, by: timedelta, **values: Any) -> None:
    async with service.database.begin() as tx:
        times = {name: getattr(IdempotencyKey, name) - by for name in ("created_at", "lease_until")}
        older = update(IdempotencyKey).values(**times, **values)
        await tx.execute(older)


def _problem(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["detail"])


async def test_64_parallel_posts_over_two_instances_make_one_run(
    service: Keyed, tmp_path: Path, database_url: str
) -> None:
    settings = settings_for(
        tmp_path, database_url, require_keys="always", operator_key=OPERATOR_KEY, rate_per_s=0, max_concurrent_runs=1
    )
    headers = bearer(OPERATOR_KEY) | {"idempotency-key": "one"}
    async with served(settings, ScriptedLoop()) as second:
        posts = [
            _until_answered(client, "/learn-loop", headers, {"iterations": 1})
            for client in (service.client, second)
            for _ in range(32)
        ]
        replies = await asyncio.gather(*posts)
    assert {reply.status_code for reply in replies} == {202}
    assert len({reply.text for reply in replies}) == 1
    assert [reply.headers.get("idempotency-replayed") for reply in replies].count("true") == 63
    assert await _runs(service) == 1


async def test_the_same_key_of_another_tenant_is_another_key(service: Keyed) -> None:
    ids = set()
    for project in ("mail", "sales"):
        headers = await service.headers(project) | {"idempotency-key": "one"}
        for _ in range(2):
            reply = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
            ids.add(reply.json()["run_id"])
    assert len(ids) == await _runs(service) == 2
    again = await service.headers("mail") | {"idempotency-key": "one"}  # another key of the project
    reply = await service.client.post("/learn-loop", headers=again, json={"iterations": 1})
    assert reply.headers["idempotency-replayed"] == "true"


async def test_another_request_with_the_same_key_is_refused(service: Keyed) -> None:
    headers = await service.headers() | {"idempotency-key": "one"}
    assert (await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})).status_code == 202
    _problem(await service.client.post("/learn-loop", headers=headers, json={"iterations": 2}), 409)
    _problem(await service.client.post("/learn-loop?a=1", headers=headers, json={"iterations": 1}), 409)
    _problem(await service.client.post("/ask", headers=headers, json={"iterations": 1}), 409)
    assert await _runs(service) == 1


async def test_while_the_first_is_under_way_the_second_waits_and_a_lost_first_is_replaced(service: Keyed) -> None:
    headers = await service.headers() | {"idempotency-key": "one"}
    first = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert first.status_code == 202
    await _age(service, timedelta(seconds=50), status=None, body=None)  # as if its process had died before the commit
    waits = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    _problem(waits, 409)
    assert waits.headers["retry-after"] == "1"
    await _age(service, timedelta(seconds=11))
    assert "already used" in _problem(await service.client.post("/learn-loop", headers=headers, json={"seed": 1}), 409)
    taken_over = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert taken_over.status_code == 202
    assert "idempotency-replayed" not in taken_over.headers


async def test_after_24_hours_the_key_is_new(service: Keyed) -> None:
    headers = await service.headers() | {"idempotency-key": "one"}
    ids = []
    for hours in (0, 23, 2):
        await _age(service, timedelta(hours=hours))
        reply = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
        ids.append(reply.json()["run_id"])
    assert ids[0] == ids[1] != ids[2]


async def test_old_keys_are_purged(service: Keyed) -> None:
    for key in ("old", "new"):
        headers = await service.headers() | {"idempotency-key": key}
        await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
        if key == "old":
            await _age(service, timedelta(hours=25))
    await idempotency.purge(service.database)
    async with service.database() as tx:
        assert (await tx.execute(select(IdempotencyKey.key))).scalars().all() == ["new"]


async def test_run_and_reply_are_committed_together(service: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after the commit and before the reply: the repetition is told of the same run."""
    create = RunStore.create

    async def commit_and_die(*args: Any, **more: Any) -> None:
        await create(*args, **more)
        raise SystemError("gone")

    monkeypatch.setattr(RunStore, "create", commit_and_die)
    headers = await service.headers() | {"idempotency-key": "one"}
    assert (await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})).status_code == 500
    monkeypatch.undo()
    again = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert again.status_code == 202
    assert again.headers["idempotency-replayed"] == "true"
    assert (await service.client.get(again.json()["links"]["self"], headers=headers)).status_code == 200
    assert await _runs(service) == 1


async def test_a_claim_that_was_taken_over_makes_nothing(service: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is slower than the claim holds meets the one that was sent again: one run, not two."""
    create, slow, go_on = RunStore.create, asyncio.Event(), asyncio.Event()

    async def create_slowly(*args: Any, **more: Any) -> None:
        if not slow.is_set():
            slow.set()
            await go_on.wait()
        await create(*args, **more)

    monkeypatch.setattr(RunStore, "create", create_slowly)
    headers = await service.headers() | {"idempotency-key": "one"}
    first = asyncio.create_task(service.client.post("/learn-loop", headers=headers, json={"iterations": 1}))
    await slow.wait()
    await _age(service, timedelta(seconds=61))
    second = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert second.status_code == 202
    go_on.set()
    assert "has replaced it" in _problem(await first, 409)
    assert await _runs(service) == 1
    third = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert third.text == second.text


async def test_a_request_that_takes_long_is_not_handled_twice(service: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews its lease, so that no repetition takes the key over while it is handled."""
    monkeypatch.setattr(idempotency, "_RENEW_EVERY_S", 0.05)
    create, begun, go_on = RunStore.create, asyncio.Event(), asyncio.Event()

    async def create_slowly(*args: Any, **more: Any) -> None:
        assert not begun.is_set(), "it is handled twice"
        begun.set()
        await go_on.wait()
        await create(*args, **more)

    monkeypatch.setattr(RunStore, "create", create_slowly)
    headers = await service.headers() | {"idempotency-key": "one"}
    first = asyncio.create_task(service.client.post("/learn-loop", headers=headers, json={"iterations": 1}))
    await begun.wait()
    async with service.database.begin() as tx:
        lapsed = IdempotencyKey.lease_until - timedelta(seconds=61)
        await tx.execute(update(IdempotencyKey).values(lease_until=lapsed))

    async def holds() -> bool:
        async with service.database() as tx:
            lease = select(IdempotencyKey.lease_until > func.clock_timestamp())
            return bool((await tx.execute(lease)).scalar_one())

    await answered(holds, bool)
    again = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert "still being handled" in _problem(again, 409)
    go_on.set()
    assert (await first).status_code == 202
    assert await _runs(service) == 1


async def test_a_claim_of_an_older_version_lapses_a_minute_after_it_was_made(service: Keyed) -> None:
    headers = await service.headers() | {"idempotency-key": "one"}
    await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    await _age(service, timedelta(seconds=50), status=None, body=None)
    async with service.database.begin() as tx:
        await tx.execute(update(IdempotencyKey).values(lease_until=None))
    waits = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert "still being handled" in _problem(waits, 409)
    await _age(service, timedelta(seconds=11))
    assert (await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})).status_code == 202


async def test_errors_are_not_kept(service: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = await service.headers() | {"idempotency-key": "one"}
    _problem(await service.client.post("/learn-loop", headers=headers, json={"iterations": 0}), 422)

    async def away(*args: Any, **more: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("away"))

    monkeypatch.setattr(RunStore, "create", away)
    _problem(await service.client.post("/learn-loop", headers=headers, json={"iterations": 1}), 503)
    monkeypatch.undo()
    accepted = await service.client.post("/learn-loop", headers=headers, json={"iterations": 1})
    assert accepted.status_code == 202
    assert "idempotency-replayed" not in accepted.headers


async def test_the_reply_is_kept_if_the_client_has_gone(service: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    create, begun, go_on = RunStore.create, asyncio.Event(), asyncio.Event()

    async def create_slowly(*args: Any, **more: Any) -> None:
        begun.set()
        await go_on.wait()
        await create(*args, **more)

    monkeypatch.setattr(RunStore, "create", create_slowly)
    headers = await service.headers() | {"idempotency-key": "one"}
    gone = asyncio.create_task(service.client.post("/learn-loop", headers=headers, json={"iterations": 1}))
    await begun.wait()
    gone.cancel()
    await asyncio.wait({gone})
    go_on.set()
    reply = await _until_answered(service.client, "/learn-loop", headers, {"iterations": 1})
    assert reply.headers["idempotency-replayed"] == "true"
    assert await _runs(service) == 1


async def test_replies_of_other_posts_are_kept_word_for_word(service: Keyed) -> None:
    run_id = await make_run(service.database, project="mail")
    event = {"event_id": "1", "type": "sent", "trajectory_id": await make_trajectory(service.database, run_id, email())}
    headers = await service.headers()
    first, again = [
        await service.client.post("/feedback", headers=headers | {"idempotency-key": "one"}, json=event)
        for _ in range(2)
    ]
    assert first.json()["accepted"] == 1
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    without = await service.client.post("/feedback", headers=headers, json=event)
    assert without.json()["duplicates"] == 1


async def test_a_reply_with_a_secret_is_not_kept(service: Keyed) -> None:
    headers = await service.headers("mail", [Scope.OPERATOR]) | {"idempotency-key": "one"}
    created = await service.client.post("/keys", headers=headers, json={"name": "ci"})
    assert created.status_code == 201
    async with service.database() as tx:
        dump = str((await tx.execute(text("SELECT * FROM idempotency_key"))).all())
    assert "201" in dump
    assert created.json()["key"] not in dump
    assert "only once" in _problem(await service.client.post("/keys", headers=headers, json={"name": "ci"}), 409)
    assert len((await service.client.get("/keys", headers=headers)).json()["items"]) == 2


@pytest.mark.parametrize("key", ["", "a b", "a\tb", "x" * 256, "l\u00e9"])
async def test_a_bad_key_is_refused(service: Keyed, key: str) -> None:
    headers = [(name, value.encode()) for name, value in (await service.headers()).items()]
    headers_with_key = [*headers, ("idempotency-key", key.encode("latin-1"))]
    _problem(await service.client.post("/learn-loop", headers=headers_with_key, json={"iterations": 1}), 422)
    assert await _runs(service) == 0


async def test_it_works_without_keys_too(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        headers = {"idempotency-key": "x" * 255}
        ids = {(await client.post("/learn-loop", headers=headers, json={})).json()["run_id"] for _ in range(2)}
        assert len(ids) == 1
