"""Browsers: a key is exchanged for a cookie, which only the service's own pages can use, and which ends with it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from learnloop_service.app.agent_sessions.store import AgentSessions, OpenedSession, PinnedModel, SessionSpec
from learnloop_service.app.auth.agent_session_keys import AgentSessionKeys
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.auth.callers import Callers
from learnloop_service.app.auth.credentials import Credential
from learnloop_service.app.auth.key_cache import KEPT_S, KeyCache
from learnloop_service.app.auth.keys import Keys, hash_of
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.auth.sign_ins import MOST_OF_A_KEY, SignIns
from learnloop_service.app.db.tables import ApiKey, SignIn
from learnloop_service.app.errors import Unauthorized
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed
from tests.integration.app.served import served, settings_for
from tests.integration.app.sign_ins import OWN_PAGE, set_cookie, sign_in

LIFETIME = timedelta(hours=12)


@pytest.fixture
async def service(data_dir: Path, database_url: str) -> AsyncIterator[Keyed]:
    async with keyed(data_dir, database_url, rate_per_s=0) as keyed_service:
        yield keyed_service


async def test_a_browser_signs_in_and_out(service: Keyed) -> None:
    new = await service.new("mail", [Scope.READ, Scope.WRITE])
    response = await service.client.post("/session", headers=bearer(new.key))
    cookie = set_cookie(response)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "Strict", "/", "")
    assert int(cookie["max-age"]) == LIFETIME.total_seconds()
    who = response.json()
    assert (who["key_required"], who["project"], who["scopes"]) == (True, "mail", ["read", "write"])
    assert who["actor"] == f"key:{new.row.prefix}"
    lifetime = datetime.fromisoformat(who["expires_at"]) - datetime.now(UTC)
    assert LIFETIME - timedelta(minutes=5) < lifetime <= LIFETIME
    assert new.key not in response.text + str(response.headers)
    assert cookie.value not in response.text

    service.client.cookies.clear()
    browser = {"cookie": f"{cookie.key}={cookie.value}"}
    assert (await service.client.get("/session", headers=browser)).json() == who
    assert (await service.client.get("/session", headers=bearer(new.key))).json() == who | {"expires_at": None}
    body = {"iterations": 1}
    accepted = await service.client.post("/learn-loop", json=body, headers=browser | OWN_PAGE)
    assert accepted.status_code == 202
    events = await service.client.get(f"/runs/{accepted.json()['run_id']}/events", headers=browser)
    assert events.json()["items"][0]["actor"] == f"key:{new.row.prefix}"

    async with service.database() as tx:
        dump = str((await tx.execute(text("SELECT * FROM browser_session"))).all())
    assert hash_of(cookie.value) in dump
    assert cookie.value not in dump

    out = await service.client.delete("/session", headers=browser | OWN_PAGE)
    assert out.status_code == 204
    assert (set_cookie(out).key, set_cookie(out).value, set_cookie(out)["max-age"]) == (cookie.key, "", "0")
    ended = await service.client.get("/runs", headers=browser)
    assert ended.status_code == 401
    assert "Sign in again" in ended.json()["detail"]
    assert set_cookie(ended)["max-age"] == "0"  # so the browser does not come back with it
    assert (await service.client.get("/runs", headers=bearer(new.key))).status_code == 200


async def test_other_pages_cannot_use_the_cookie(service: Keyed) -> None:
    """What a browser sends for a page of another site, of another port, of a file, or for a form."""
    browser = await sign_in(service, (await service.new()).key)
    page_origin = str(service.client.base_url).rstrip("/")
    attacks: list[dict[str, str]] = [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"{page_origin}.evil.example"},
        {},
    ]
    for headers in attacks:
        for method, path in (("POST", "/learn-loop"), ("POST", "/webhooks"), ("DELETE", "/session")):
            reply = await service.client.request(method, path, headers=browser | headers, content=b"{}")
            assert reply.status_code == 403, (method, path, headers)
            assert "set-cookie" not in reply.headers
        if headers:
            assert (await service.client.get("/runs", headers=browser | headers)).status_code == 403
    assert (await service.client.get("/runs", headers=browser)).json()["items"] == []
    for headers in ({"origin": page_origin}, OWN_PAGE):
        reply = await service.client.post("/learn-loop", headers=browser | headers, json={"iterations": 1})
        assert reply.status_code == 202, reply.text


async def test_a_page_that_may_call_with_a_key_cannot_use_the_cookie(data_dir: Path, database_url: str) -> None:
    page = "https://app.example"
    async with keyed(data_dir, database_url, rate_per_s=0, cors_origins=page) as service:
        key = (await service.new()).key
        browser = await sign_in(service, key)
        assert (await service.client.get("/runs", headers=bearer(key) | {"origin": page})).status_code == 200
        assert (await service.client.get("/runs", headers=browser | {"origin": page})).status_code == 403


async def test_a_key_is_no_session_and_a_session_no_key(service: Keyed) -> None:
    new = await service.new()
    browser = await sign_in(service, new.key)
    name, _, token = browser["cookie"].partition("=")
    assert (await service.client.get("/runs", headers=bearer(token))).status_code == 401
    for value in (new.key, hash_of(token), token[:-1], token + "a", "", "ls_", "\u00e9"):
        raw = [(b"cookie", f"{name}={value}".encode("latin-1"))]
        assert (await service.client.get("/runs", headers=raw)).status_code == 401, value
    assert (await service.client.get("/runs", params={name: token})).status_code == 401
    # A session opens no further one: it would never end.
    assert (await service.client.post("/session", headers=browser | OWN_PAGE)).status_code == 401


async def test_a_session_allows_what_its_key_does(service: Keyed) -> None:
    writer = await sign_in(service, (await service.new(scopes=[Scope.WRITE])).key)
    assert (await service.client.get("/session", headers=writer)).json()["scopes"] == ["write"]
    assert (await service.client.get("/runs", headers=writer)).status_code == 403
    of_mail, other = [await sign_in(service, (await service.new(project)).key) for project in ("mail", "sales")]
    run = await service.client.post("/learn-loop", headers=of_mail | OWN_PAGE, json={"iterations": 1})
    path = f"/runs/{run.json()['run_id']}"
    assert (await service.client.get(path, headers=of_mail)).status_code == 200
    assert (await service.client.get(path, headers=other)).status_code == 404


async def _replica(service: Keyed, operator: str | None = None) -> tuple[Callers, list[float]]:
    """Another process with the same database, and its clock."""
    clock = [0.0]
    operator_hash = None if operator is None else hash_of(operator)
    keys = KeyCache(Keys(service.database), operator_hash, lambda: clock[0])
    sign_ins = SignIns(service.database, operator_hash, LIFETIME)
    return Callers(keys, sign_ins, AgentSessionKeys(service.database, keys), lambda: clock[0]), clock


async def test_a_session_ends_with_its_key_on_every_replica(service: Keyed) -> None:
    new = await service.new()
    browser = await sign_in(service, new.key)
    session = Credential(browser["cookie"].partition("=")[2], is_sign_in=True)
    replica, clock = await _replica(service)
    assert (await replica.caller(session)).project == "mail"
    await service.client.delete(f"/keys/{new.row.id}", headers=bearer(OPERATOR_KEY))
    clock[0] = KEPT_S
    with pytest.raises(Unauthorized):
        await replica.caller(session)


async def test_a_session_expires_and_never_outlives_its_key(service: Keyed) -> None:
    new = await service.new(expires_days=1)
    async with service.database.begin() as tx:
        soon = func.now() + timedelta(hours=1)
        await tx.execute(update(ApiKey).where(ApiKey.id == new.row.id).values(expires_at=soon))
    browser = await sign_in(service, new.key)
    who = (await service.client.get("/session", headers=browser)).json()
    assert datetime.fromisoformat(who["expires_at"]) - datetime.now(UTC) < timedelta(hours=1, minutes=1)
    token = Credential(browser["cookie"].partition("=")[2], is_sign_in=True)
    replica, _ = await _replica(service)
    async with service.database.begin() as tx:
        await tx.execute(update(SignIn).values(expires_at=func.now()))
    with pytest.raises(Unauthorized):
        await replica.caller(token)
    await sign_in(service, new.key)
    async with service.database() as tx:  # what expired is deleted when the next one signs in
        assert (await tx.execute(select(func.count()).select_from(SignIn))).scalar_one() == 1


async def test_sessions_of_the_operator_end_when_its_key_is_changed(service: Keyed) -> None:
    browser = await sign_in(service, OPERATOR_KEY)
    assert (await service.client.get("/keys", headers=browser)).status_code == 200
    assert (await service.client.get("/session", headers=browser)).json()["project"] == "*"
    token = Credential(browser["cookie"].partition("=")[2], is_sign_in=True)
    same, _ = await _replica(service, OPERATOR_KEY)
    assert (await same.caller(token)).actor == "key:operator"
    for changed in (OPERATOR_KEY + "x", None):
        replica, _ = await _replica(service, changed)
        with pytest.raises(Unauthorized):
            await replica.caller(token)


async def _agent_session(
    service: Keyed, opener_sha256: str | None, ttl: timedelta = timedelta(days=30)
) -> OpenedSession:
    model = PinnedModel("learnloop/tiny", "learnloop/tiny", None, "embedded", None)
    return await AgentSessions(service.database).open(SessionSpec("mail", model, ttl, opener_sha256=opener_sha256))


def _session_key(opened: OpenedSession) -> Credential:
    assert opened.key is not None
    return Credential(opened.key, is_sign_in=False)


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_an_agents_session_ends_with_its_key_on_every_replica(service: Keyed, how: str) -> None:
    new, other = await service.new(), await service.new()
    own_session, theirs = await _agent_session(service, new.row.sha256), await _agent_session(service, other.row.sha256)
    replica, clock = await _replica(service)
    assert (await replica.caller(_session_key(own_session))).agent is not None
    if how == "revoked":
        await service.client.delete(f"/keys/{new.row.id}", headers=bearer(OPERATOR_KEY))
        assert (await AgentSessions(service.database).get(LOCAL, own_session.row.id)).state == "expired"
    else:
        async with service.database.begin() as tx:
            await tx.execute(update(ApiKey).where(ApiKey.id == new.row.id).values(expires_at=func.now()))
    clock[0] = KEPT_S
    with pytest.raises(Unauthorized, match="the API key that opened it"):
        await replica.caller(_session_key(own_session))
    assert (await replica.caller(_session_key(theirs))).project == "mail"
    assert (await AgentSessions(service.database).get(LOCAL, theirs.row.id)).state == "open"


async def test_an_agents_session_does_not_outlive_its_key(service: Keyed) -> None:
    new = await service.new(expires_days=1)
    assert (await _agent_session(service, new.row.sha256)).row.expires_at == new.row.expires_at
    short = (await _agent_session(service, new.row.sha256, timedelta(hours=1))).row
    assert short.expires_at - short.opened_at < timedelta(hours=2)


async def test_agents_sessions_of_the_operator_end_when_its_key_is_changed(service: Keyed) -> None:
    operators, nobodys = await _agent_session(service, hash_of(OPERATOR_KEY)), await _agent_session(service, None)
    same, _ = await _replica(service, OPERATOR_KEY)
    assert (await same.caller(_session_key(operators))).project == "mail"
    for changed in (OPERATOR_KEY + "x", None):
        replica, _ = await _replica(service, changed)
        with pytest.raises(Unauthorized):
            await replica.caller(_session_key(operators))
        assert (await replica.caller(_session_key(nobodys))).project == "mail"


async def test_a_key_has_a_limited_number_of_sessions(service: Keyed) -> None:
    new, other = await service.new(), await service.new()
    sessions = SignIns(service.database, None, LIFETIME)
    apart = await sessions.open(other.row)
    tokens = [(await sessions.open(new.row)).token for _ in range(MOST_OF_A_KEY + 1)]
    assert [await sessions.find(token) is not None for token in (*tokens[:2], apart.token)] == [False, True, True]


async def test_over_https_the_cookie_is_secure(service: Keyed) -> None:
    """The proxy that speaks HTTPS passes on where the page is from."""
    key = (await service.new()).key
    response = await service.client.post("/session", headers=bearer(key) | {"origin": "https://learn.example"})
    cookie = set_cookie(response)
    assert cookie.key == "__Host-learnloop_session"
    assert cookie["secure"] is True
    service.client.cookies.clear()
    browser = {"cookie": f"{cookie.key}={cookie.value}"}
    assert (await service.client.get("/session", headers=browser)).status_code == 200


async def test_guessed_sessions_count_as_wrong_keys(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, rate_per_s=0, failed_keys_per_minute=0.01) as service:
        new = await service.new()
        browser = await sign_in(service, new.key)
        assert (await service.client.get("/runs", headers=browser)).status_code == 200
        guess = {"cookie": f"learnloop_session=ls_{'x' * 43}"}
        replies = [(await service.client.get("/runs", headers=guess)).status_code for _ in range(31)]
        assert replies == [401] * 30 + [429]
        wrong = await service.client.post("/session", headers=bearer(new.key[:-1] + "_"))
        assert wrong.status_code == 429
        assert int(wrong.headers["retry-after"]) > 0
        assert (await service.client.get("/runs", headers=browser)).status_code == 200  # it was right lately


async def test_an_open_stream_ends_with_its_session(data_dir: Path, database_url: str) -> None:
    """An EventSource sends the cookie by itself, and nothing else."""
    async with keyed(data_dir, database_url, rate_per_s=0, max_concurrent_runs=0) as service:
        key = (await service.new()).key
        browser = await sign_in(service, key)
        run = await service.client.post("/learn-loop", json={"iterations": 1}, headers=bearer(key))
        path, heard = f"/runs/{run.json()['run_id']}", ""
        headers = {"accept": "text/event-stream", **browser, **OWN_PAGE}
        async with service.client.stream("GET", f"{path}/events", headers=headers, timeout=30) as stream:
            parts = stream.aiter_text()
            heard += await anext(parts)
            assert (await service.client.delete("/session", headers=browser | OWN_PAGE)).status_code == 204
            ask = partial(service.client.get, path, headers=browser)
            await answered(ask, lambda response: response.status_code == 401)
            assert (await service.client.post(f"{path}/pause", headers=bearer(key))).status_code < 300
            async with asyncio.timeout(60):
                heard += "".join([part async for part in parts])
        assert "event: run.created" in heard
        assert "run.paused" not in heard


async def test_where_no_key_is_required_nobody_signs_in(data_dir: Path, database_url: str) -> None:
    everything: dict[str, Any] = {
        "key_required": False,
        "actor": "local",
        "project": "*",
        "scopes": ["operator", "read", "write"],
        "expires_at": None,
    }
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/session")).json() == everything
        signed_in = await client.post("/session")
        assert signed_in.json() == everything
        assert "set-cookie" not in signed_in.headers
        assert (await client.delete("/session")).status_code == 204
