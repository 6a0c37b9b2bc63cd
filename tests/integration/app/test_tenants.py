"""Two tenants on one service: neither sees that the other's things exist. The operations come from the OpenAPI file."""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert
from ulid import ULID

from app.auth.caller import Caller
from app.auth.scopes import Scope
from app.auth.tenancy import require_model
from app.errors import NotFound
from app.main import create_app
from app.models import Trajectory, WebhookDelivery, WebhookEndpoint
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed
from tests.integration.app.served import run_with, settings_for

_BY_CONTENT = {"/graphs/{sha256}", "/scenarios/{sha256}"}
"""Who knows the hash of a document has it: documents belong to nobody."""
_OTHERS = {"name": "run.json"}
"""Parameters below a run that are no ids."""


@dataclass(frozen=True)
class Tenants:
    """A service on which `mail` has one of everything."""

    service: Keyed
    mail: Mapping[str, str]
    sales: Mapping[str, str]
    ids: Mapping[str, str]
    """Of what is mail's, by the beginning of its path."""

    async def sales_asks(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.service.client.request(method, path, headers=dict(self.sales), **more)


@pytest.fixture
async def tenants(data_dir: Path, database_url: str) -> AsyncIterator[Tenants]:
    async with keyed(data_dir, database_url, rate_per_s=0) as service:
        run_id = await make_run(service.sessions, project="mail")
        key = await service.new("mail", Scope)
        ids = {
            "/runs/{run_id}": run_id,
            "/trajectories/{trajectory_id}": await make_trajectory(service.sessions, run_id, email(), shown_after=0),
            "/webhooks/{id}": str(ULID()),
            "/webhooks/deliveries/{id}": str(ULID()),
            "/keys/{key_id}": (await service.new("mail")).row.id,
        }
        hook = {"id": ids["/webhooks/{id}"], "project": "mail", "url": "https://mail.example/hook", "events": []}
        delivery = {"run_id": run_id, "endpoint_id": hook["id"], "url": hook["url"], "body": "{}", "state": "delivered"}
        async with service.sessions.begin() as session:
            await session.execute(insert(WebhookEndpoint).values(hook))
            await session.execute(insert(WebhookDelivery).values(delivery | {"id": ids["/webhooks/deliveries/{id}"]}))
        yield Tenants(service, bearer(key.key), await service.headers("sales", Scope), ids)


def _operations(data_dir: Path, database_url: str) -> list[tuple[str, str]]:
    """Method and path template of every operation with a parameter in its path."""
    paths = create_app(settings_for(data_dir, database_url)).openapi()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" in path]
    assert len(found) > 10
    return [each for each in found if each[1] not in _BY_CONTENT]


def _filled(template: str, ids: Mapping[str, str], id: str | None = None) -> str:
    """The path with the id of what is mail's, or with another id. KeyError if the template is of an unknown kind."""
    begin = max((begin for begin in ids if template.startswith(begin)), key=len, default=template)
    path = template.replace(begin, re.sub(r"\{\w+\}", id or ids[begin], begin))
    return re.sub(r"\{(\w+)\}", lambda match: _OTHERS[match[1]], path)


async def test_every_operation_with_an_id_says_that_it_does_not_exist(
    tenants: Tenants, data_dir: Path, database_url: str
) -> None:
    for method, template in _operations(data_dir, database_url):
        missing = str(ULID())
        theirs = _filled(template, tenants.ids)
        not_there = _filled(template, tenants.ids, missing)
        id = next(part for part in theirs.split("/") if re.fullmatch(r"[0-9A-Z]{26}", part))
        for query in ("", "?cursor=nonsense&limit=0"):
            foreign = await tenants.sales_asks(method, theirs + query, json={})
            absent = await tenants.sales_asks(method, not_there + query, json={})
            assert foreign.content.replace(id.encode(), b"ID") == absent.content.replace(missing.encode(), b"ID")
            assert foreign.status_code == absent.status_code, (method, template)
            if not query:
                assert foreign.status_code == 404, (method, template, foreign.text)


async def test_their_owner_reads_all_of_it(tenants: Tenants, data_dir: Path, database_url: str) -> None:
    """Otherwise the test above would prove nothing."""
    answered = set()
    for method, template in _operations(data_dir, database_url):
        if method != "GET":
            continue
        reply = await tenants.service.client.get(_filled(template, tenants.ids), headers=dict(tenants.mail))
        if reply.status_code == 200:
            answered |= {begin for begin in tenants.ids if template.startswith(begin)}
        else:
            assert "there is no run" not in reply.text
    assert answered >= {"/runs/{run_id}", "/trajectories/{trajectory_id}"}
    revoke = f"/keys/{tenants.ids['/keys/{key_id}']}"
    assert (await tenants.service.client.delete(revoke, headers=dict(tenants.mail))).status_code == 200


async def test_lists_have_ones_own_only(tenants: Tenants, data_dir: Path, database_url: str) -> None:
    """Every list without an id in its path: nothing of mail's is in sales' answers."""
    paths = create_app(settings_for(data_dir, database_url)).openapi()["paths"]
    secrets = set(tenants.ids.values())
    own = 0
    for path, methods in paths.items():
        if "get" not in methods or "{" in path:
            continue
        text = (await tenants.sales_asks("GET", path)).text
        assert not [id for id in secrets if id in text], path
        whole = (await tenants.service.client.get(path, headers=dict(tenants.mail))).text
        own += any(id in whole for id in secrets)
    assert own >= 2  # runs and keys at least
    assert (await tenants.sales_asks("GET", "/runs", params={"status": "completed"})).json()["items"] == []
    everything = await tenants.service.client.get("/runs", headers=bearer(OPERATOR_KEY))
    assert [run["run_id"] for run in everything.json()["items"]] == [tenants.ids["/runs/{run_id}"]]


async def test_a_learn_loop_is_the_keys_projects(tenants: Tenants) -> None:
    made = await tenants.sales_asks("POST", "/learn-loop", json={"iterations": 1})
    tenants.service.client.headers.update(tenants.sales)
    run = await run_with(tenants.service.client, made.json()["run_id"], "completed")
    assert run["model"]["project"] == "sales"
    named = await tenants.sales_asks("POST", "/learn-loop", json={"iterations": 1, "model": {"project": "sales"}})
    assert named.status_code == 202
    for project in ("mail", "nobody"):
        refused = await tenants.sales_asks("POST", "/learn-loop", json={"model": {"project": project}})
        assert refused.status_code == 403
        assert "sales" in refused.json()["detail"]


async def test_nothing_foreign_can_be_asked(tenants: Tenants) -> None:
    foreign, absent = tenants.ids["/runs/{run_id}"], str(ULID())
    for told in ({"run_id": foreign}, {"run_id": absent}):
        reply = await tenants.sales_asks("POST", "/ask", json={"question": "why?"} | told)
        assert reply.status_code == 404
        assert reply.json()["detail"] == f"there is no run {told['run_id']!r}"
    for model in ("mail/agent", "mail/agent@3", "nobody/agent", "sales/../mail/agent", "agent"):
        reply = await tenants.sales_asks("POST", "/ask", json={"question": "why?", "model": model})
        assert reply.status_code == 404
        assert reply.json()["detail"] == f"there is no model {model!r}"


def test_models_by_name() -> None:
    sales = Caller("key:ll_a", "sales", frozenset(Scope))
    bases = {"learnloop/tiny", "gemma"}
    for model in ("learnloop/tiny", "gemma", "sales/agent", "sales/agent@3"):
        require_model(sales, model, bases)
    with pytest.raises(NotFound):
        require_model(sales, "learnloop/other", bases)
    require_model(Caller("local", None, frozenset(Scope)), "mail/agent", bases)


async def test_nothing_foreign_takes_feedback(tenants: Tenants) -> None:
    trajectory_id, run_id = tenants.ids["/trajectories/{trajectory_id}"], tenants.ids["/runs/{run_id}"]
    for about in ({"trajectory_id": trajectory_id}, {"run_id": run_id, "iteration": 0}):
        event = {"event_id": str(ULID()), "type": "thumbs_up"} | about
        assert (await tenants.sales_asks("POST", "/feedback", json=event)).status_code == 404
        own = await tenants.service.client.post("/feedback", json=event, headers=dict(tenants.mail))
        assert own.json()["accepted"] == 1
    run = await make_run(tenants.service.sessions, project="sales")
    mine = await make_trajectory(tenants.service.sessions, run, email())
    event = {"event_id": "a", "type": "preferred", "trajectory_id": mine, "over": trajectory_id}
    assert (await tenants.sales_asks("POST", "/feedback", json=event)).status_code == 404


async def test_an_answer_of_a_model_by_name_belongs_to_who_asked(tenants: Tenants) -> None:
    id = await make_trajectory(tenants.service.sessions, None, email())
    path = f"/trajectories/{id}"
    for headers in (tenants.mail, tenants.sales):
        assert (await tenants.service.client.get(path, headers=dict(headers))).status_code == 404
    async with tenants.service.sessions.begin() as session:
        row = await session.get_one(Trajectory, id)
        row.project = "sales"
    assert (await tenants.sales_asks("GET", path)).status_code == 200
    assert (await tenants.service.client.get(path, headers=dict(tenants.mail))).status_code == 404
    assert (await tenants.service.client.get(path, headers=bearer(OPERATOR_KEY))).status_code == 200
