"""Keys over HTTP: nobody gets in without one, and what each one may do."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import delete, make_url, select, text, update
from starlette.routing import Mount

from learnloop_service.app.auth.key_cache import KEPT_S, KeyCache
from learnloop_service.app.auth.keys import Keys, hash_of, new_key
from learnloop_service.app.auth.scopes import ANTHROPIC, Scope, is_page, is_public, model_path
from learnloop_service.app.db.tables import ApiKey, Improvement
from learnloop_service.app.errors import Unauthorized
from learnloop_service.app.main import create_app
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.connections import end_connections
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed
from tests.integration.app.served import served, settings_for


@pytest.fixture
async def service(data_dir: Path, database_url: str) -> AsyncIterator[Keyed]:
    async with keyed(data_dir, database_url, rate_per_s=0) as keyed_service:
        yield keyed_service


def _problem(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    return response.json()


def _routes(routes: Any) -> Iterator[tuple[str, str]]:
    """Method and path of every route, also of included routers and mounts."""
    for route in routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/swagger-ui.css"
        elif hasattr(route, "original_router"):
            yield from _routes(route.original_router.routes)
        else:
            for method in route.methods:
                yield method, re.sub(r"\{[^}]*\}", "01KAJ3M7F5T2V8Q9X0C4D6E8GA", route.path)


async def _spoilt(service: Keyed) -> dict[str, dict[str, str]]:
    """Headers that nobody should get in with, by what is wrong with them."""
    good, revoked, expired = [await service.new() for _ in range(3)]
    async with service.database.begin() as tx:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await tx.execute(update(ApiKey).where(ApiKey.id == expired.row.id).values(expires_at=past))
        await tx.execute(update(ApiKey).where(ApiKey.id == revoked.row.id).values(revoked_at=past))
    return {
        "none": {},
        "wrong": bearer(new_key()),
        "no key of ours": bearer("hello"),
        "not ASCII": {"authorization": "Bearer l\u00e9"},
        "empty": {"authorization": "Bearer"},
        "revoked": bearer(revoked.key),
        "expired": bearer(expired.key),
        "the hash": bearer(hash_of(good.key)),
        "the prefix": bearer(good.row.prefix),
        "basic": {"authorization": f"Basic {good.key}"},
        "another header": {"x-api-key": good.key},
    }


async def test_no_route_but_the_public_ones_lets_anybody_in(
    service: Keyed, data_dir: Path, database_url: str, api: Json
) -> None:
    app = create_app(settings_for(data_dir, database_url))
    routes = set(_routes(app.routes))
    in_schema = {path for path in api["paths"] if "{" not in path}
    assert in_schema < {path for _, path in routes}
    assert len([path for _, path in routes if not is_public(path)]) > 20
    spoilt = await _spoilt(service)
    for method, path in sorted(routes):
        for what, headers in spoilt.items():
            if what == "another header" and model_path(path) in ANTHROPIC:
                continue  # there it is the right one
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            response = await service.client.request(method, path, headers=encoded)
            if is_public(path) or is_page(method, path):
                assert response.status_code in (200, 307, 404), (method, path)  # 404: a file of this name
                continue
            assert response.headers["www-authenticate"] == "Bearer", (what, method, path)
            if model_path(path) is not None:
                assert response.status_code == 401
                error = response.json()["error"]
                assert (error.get("code") or error["type"]) in ("invalid_api_key", "authentication_error")
                continue
            _problem(response, 401)
    for path in ("/nothing", "/runs/", "/openapi.json/x", "/static-offline-docs"):
        _problem(await service.client.get(path), 401)


async def test_an_error_does_not_tell_which_keys_existed(service: Keyed) -> None:
    spoilt = await _spoilt(service)
    bodies = {
        (await service.client.get("/runs", headers=spoilt[what])).text for what in ("wrong", "revoked", "expired")
    }
    assert len(bodies) == 1
    key = spoilt["revoked"]["authorization"].removeprefix("Bearer ")
    assert key not in bodies.pop()


async def test_a_key_in_the_address_or_given_twice_is_not_taken(service: Keyed) -> None:
    key = (await service.new()).key
    _problem(await service.client.get("/runs", params={"api_key": key, "access_token": key}), 401)
    twice = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
    _problem(await service.client.get("/runs", headers=twice), 401)
    assert (await service.client.get("/runs", headers={"authorization": f"bearer  {key}"})).status_code == 200


async def test_scopes(service: Keyed) -> None:
    reader = await service.headers(scopes=[Scope.READ])
    writer = await service.headers(scopes=[Scope.WRITE])
    assert (await service.client.get("/runs", headers=reader)).status_code == 200
    for method, path in (("POST", "/learn-loop"), ("POST", "/runs/01K/cancel"), ("GET", "/keys"), ("POST", "/keys")):
        problem = _problem(await service.client.request(method, path, headers=reader, json={}), 403)
        assert problem["detail"].startswith("This API key does not have the scope")
    _problem(await service.client.get("/runs", headers=writer), 403)
    _problem(await service.client.get("/keys", headers=writer), 403)
    assert (await service.client.post("/learn-loop", headers=writer, json={"iterations": 1})).status_code == 202


async def test_a_refused_body_is_not_read(service: Keyed) -> None:
    """The reply comes although the body never does."""
    host, port = service.client.base_url.host, service.client.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /graphs HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n")
    await writer.drain()
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_keys_are_made_shown_once_listed_and_revoked(service: Keyed) -> None:
    operator = bearer(OPERATOR_KEY)
    created = await service.client.post(
        "/keys", headers=operator, json={"project": "mail", "name": "ci", "scopes": ["read"], "expires_days": 7}
    )
    assert created.status_code == 201, created.text
    key = created.json()["key"]
    assert created.json()["prefix"] == key[:11]
    assert created.json()["scopes"] == ["read"]
    lifetime = datetime.fromisoformat(created.json()["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=6.9) < lifetime < timedelta(days=7)
    assert (await service.client.get("/runs", headers=bearer(key))).status_code == 200

    listed = await service.client.get("/keys", headers=operator)
    assert [key_row["name"] for key_row in listed.json()["items"]] == ["ci"]
    assert key not in listed.text
    async with service.database() as tx:
        dump = str((await tx.execute(text("SELECT * FROM api_key"))).all())
    assert key not in dump
    assert hash_of(key) in dump

    path = f"/keys/{created.json()['id']}"
    revoked = await service.client.delete(path, headers=operator)
    assert revoked.json()["revoked_at"] is not None
    assert (await service.client.delete(path, headers=operator)).json() == revoked.json()
    _problem(await service.client.delete("/keys/01KAJ3M7F5T2V8Q9X0C4D6E8GA", headers=operator), 404)
    whole: dict[str, Any] = {"project": "mail", "name": "ci"}
    wrong = [
        ("project", None),
        ("project", "../up"),
        ("scopes", []),
        ("scopes", ["root"]),
        ("sha256", "a"),
        ("name", ""),
    ]
    for name, value in wrong:
        _problem(await service.client.post("/keys", headers=operator, json=whole | {name: value}), 422)


async def test_an_operator_of_a_project_manages_its_keys_only(service: Keyed) -> None:
    operator = await service.headers("mail", [Scope.OPERATOR])
    other = await service.new("sales")
    created = await service.client.post("/keys", headers=operator, json={"name": "own"})
    assert created.json()["project"] == "mail"
    for project in ("sales", "*"):
        _problem(await service.client.post("/keys", headers=operator, json={"name": "a", "project": project}), 403)
    items = (await service.client.get("/keys", headers=operator)).json()["items"]
    assert {item["project"] for item in items} == {"mail"}
    _problem(await service.client.delete(f"/keys/{other.row.id}", headers=operator), 404)
    assert (await service.client.get("/runs", headers=bearer(other.key))).status_code == 200


async def test_revocation_holds_on_another_replica_within_the_promised_time(service: Keyed) -> None:
    """A second key cache on the same database stands for the replica; its clock is moved."""
    new, now = await service.new(), 0.0
    keys = Keys(service.database)
    replica = KeyCache(keys, clock=lambda: now)
    assert (await replica.caller(new.key)).project == "mail"
    operator = bearer(OPERATOR_KEY)
    assert (await service.client.delete(f"/keys/{new.row.id}", headers=operator)).status_code == 200
    now = KEPT_S
    assert KEPT_S <= 5
    with pytest.raises(Unauthorized):
        await replica.caller(new.key)


async def test_an_open_stream_ends_with_its_key(data_dir: Path, database_url: str) -> None:
    """Whoever listens when the key is revoked hears nothing of what happens later."""
    async with keyed(data_dir, database_url, rate_per_s=0, max_concurrent_runs=0) as service:
        new = await service.new()
        run = (await service.client.post("/learn-loop", json={"iterations": 1}, headers=bearer(new.key))).json()
        path, operator = f"/runs/{run['run_id']}", bearer(OPERATOR_KEY)
        headers = {"accept": "text/event-stream", **bearer(new.key)}
        heard = ""
        async with service.client.stream("GET", f"{path}/events", headers=headers, timeout=30) as stream:
            parts = stream.aiter_text()
            heard += await anext(parts)
            await service.client.delete(f"/keys/{new.row.id}", headers=operator)
            ask = partial(service.client.get, path, headers=bearer(new.key))
            await answered(ask, lambda response: response.status_code == 401)
            assert (await service.client.post(f"{path}/pause", headers=operator)).status_code < 300
            async with asyncio.timeout(60):
                heard += "".join([part async for part in parts])
        assert "event: run.created" in heard
        assert "run.paused" not in heard


async def test_the_last_use_is_noted_at_most_once_a_minute(service: Keyed) -> None:
    new = await service.new()
    cache = KeyCache(Keys(service.database))

    async def noted() -> datetime | None:
        await cache.caller(new.key)
        await cache.save_use()
        async with service.database() as tx:
            query = select(ApiKey.last_used_at).where(ApiKey.id == new.row.id)
            return (await tx.execute(query)).scalar_one()

    first = await noted()
    assert first is not None
    assert await noted() == first
    async with service.database.begin() as tx:
        old = first - timedelta(seconds=61)
        await tx.execute(update(ApiKey).where(ApiKey.id == new.row.id).values(last_used_at=old))
    assert await noted() not in (first, old)


async def test_on_loopback_no_key_is_needed(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/runs")).status_code == 200
        created = await client.post("/keys", json={"project": "mail", "name": "first", "scopes": ["operator"]})
        assert created.status_code == 201


async def test_a_database_that_is_away_is_no_wrong_key(service: Keyed, database_url: str) -> None:
    new = await service.new()
    url = make_url(database_url)
    conninfo = f"host='{url.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as admin:
        await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false".encode())
        await end_connections(admin, str(url.database))
        response = await service.client.get("/runs", headers=bearer(new.key))
        await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true".encode())
    _problem(response, 503)
    assert int(response.headers["retry-after"]) > 0
    assert (await service.client.get("/runs", headers=bearer(new.key))).status_code == 200


async def test_every_reply_says_what_it_answers_and_is_not_kept(service: Keyed) -> None:
    headers = await service.headers()
    for path in ("/runs", "/runs/01K", "/nothing", "/health/live", "/docs"):
        for request_headers in (headers, None):
            response = await service.client.get(path, headers=request_headers)
            assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-security-policy"] == "frame-ancestors 'none'"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in response.headers
    reply = await service.client.get("/runs", headers=headers | {"x-request-id": "job-7:a.b"})
    assert reply.headers["x-request-id"] == "job-7:a.b"
    for odd in ("a b", "x" * 129, "a\tb", ""):
        response = await service.client.get("/runs", headers=headers | {"x-request-id": odd})
        assert response.headers["x-request-id"] != odd


async def test_an_unexpected_error_has_the_headers_too(data_dir: Path, database_url: str) -> None:
    app = create_app(settings_for(data_dir, database_url))

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a secret detail")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get("/broken", headers={"x-request-id": "seven"})
    assert "a secret detail" not in response.text
    _problem(response, 500)
    assert response.headers["x-request-id"] == "seven"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_key_for_proposals_opens_one_improvement_and_nothing_else(service: Keyed) -> None:
    rows = {"mine": "mail", "other": "mail", "foreign": "sales"}
    async with service.database.begin() as tx:
        tx.add_all(
            Improvement(
                id=id, project=project, status="cancelled", request={}, facts={}, actor="a", version=0, champion=0
            )
            for id, project in rows.items()
        )
    operator = await service.headers(scopes=[Scope.OPERATOR])
    for scopes, more in (
        (["propose"], {}),
        (["read", "propose"], of_mine := {"improvement_id": "mine"}),
        (["read"], of_mine),
    ):
        reply = await service.client.post("/keys", headers=operator, json={"name": "x", "scopes": scopes, **more})
        assert "stands alone" in _problem(reply, 422)["detail"]
    for id in ("foreign", "nothing"):
        body = {"name": "x", "scopes": ["propose"], "improvement_id": id}
        _problem(await service.client.post("/keys", headers=operator, json=body), 404)
    body = {"name": "x", "scopes": ["propose"], "improvement_id": "mine"}
    created = (await service.client.post("/keys", headers=bearer(OPERATOR_KEY), json=body)).raise_for_status().json()
    assert (created["project"], created["scopes"], created["improvement_id"]) == ("mail", ["propose"], "mine")
    proposer = bearer(created["key"])
    mine = "/improvements/mine"
    for method, path in (
        ("GET", "/material"),
        ("POST", "/candidates"),
        ("GET", "/candidates/12"),
        ("HEAD", "/material"),
    ):
        reply = await service.client.request(method, f"{mine}{path}", headers=proposer, json={})
        assert reply.status_code not in (401, 403), (method, path, reply.text)
    for method, path in (
        *(
            ("GET", path)
            for path in (mine, f"{mine}/", f"{mine}/candidates", "/improvements", "/runs", "/keys", "/session")
        ),
        *(("GET", f"/improvements/{other}/material") for other in ("other", "foreign", "mine2", "nothing")),
        *(
            ("POST", path)
            for path in (f"{mine}/cancel", f"{mine}/material", "/improvements/other/candidates", "/learn-loop")
        ),
        *(("GET", f"{mine}/candidates/{number}") for number in ("x", "1/x", "%31%2F..")),
        ("DELETE", mine),
        ("DELETE", f"{mine}/candidates"),
        ("PUT", f"{mine}/candidates"),
        ("POST", "/v1/chat/completions"),
    ):
        reply = await service.client.request(method, path, headers=proposer, json={})
        assert reply.status_code == 403, (method, path, reply.text)
    async with service.database.begin() as tx:
        await tx.execute(delete(Improvement).where(Improvement.id == "mine"))

    async def status() -> int:
        return (await service.client.get(f"{mine}/material", headers=proposer)).status_code

    await answered(status, lambda code: code == 403)
    assert (
        "does not have the scope" in (await service.client.get(f"{mine}/material", headers=proposer)).json()["detail"]
    )
