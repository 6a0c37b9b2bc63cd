"""Two tenants on one service: neither sees that the other's things exist. The operations come from the OpenAPI file."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, update
from ulid import ULID

from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import (
    DatasetVersion,
    EvaluationJob,
    Improvement,
    Promotion,
    Trajectory,
    WebhookDelivery,
    WebhookEndpoint,
)
from learnloop_service.environment.json_type import Json
from tests.fakes.sales_agent import GRAPH
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed
from tests.integration.app.release_stage import running_release
from tests.integration.app.scheduled import RUN
from tests.integration.app.served import run_with

_HASHES = {"/graphs/{sha256}", "/scenarios/{sha256}", "/demonstrations/{sha256}", "/prompts/{sha256}"}
"""Paths whose id is the hash of a content."""
PROMPT = {"parts": {"system": "Be careful."}}
SCENARIOS = {
    "environment": "sales_email",
    "scenarios": [{"prospect": f"Person {n}", "company": "Zolem Works", "start": "job-quotes"} for n in range(5)],
    "graph": GRAPH,
}
_OTHERS = {"name": "run.json", "step": "1", "table": "iterations", "number": "1", "action": "pause"}
"""Parameters below a run or a model that are no ids."""


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
        run_id = await make_run(service.database, project="mail")
        key = await service.new("mail", Scope)
        ids = {
            "/runs/{run_id}": run_id,
            "/trajectories/{trajectory_id}": await make_trajectory(service.database, run_id, email(), shown_after=0),
            "/webhooks/{id}": str(ULID()),
            "/webhooks/deliveries/{id}": str(ULID()),
            "/evaluations/{evaluation_id}": str(ULID()),
            "/releases/{release_id}": await running_release(service.database),
            "/schedules/{id}": await _scheduled(service, key.key),
            "/improvements/{id}": await _improvement(service, key.key),
            "/sessions/{id}": await _session(service),
            "/keys/{key_id}": (await service.new("mail")).row.id,
            "/budgets/{owner}": f"key:{key.row.id}",
            "/models/{project}/{name}": "mail",
            "/promotions/{project}/{name}": "mail",
            "/graphs/{sha256}": await _stored(service, key.key, "/graphs", {"graph": GRAPH}),
            "/inboxes/{name}": f"inbox-{ULID()}",
            "/scenarios/{sha256}": await _stored(service, key.key, "/scenarios", SCENARIOS),
            "/demonstrations/{sha256}": await _demonstrated(service, key.key),
            "/prompts/{sha256}": await _stored(service, key.key, "/prompts?name=careful", PROMPT),
        }
        hook = {"id": ids["/webhooks/{id}"], "project": "mail", "url": "https://mail.example/hook", "events": []}
        delivery = {"run_id": run_id, "endpoint_id": hook["id"], "url": hook["url"], "body": "{}", "state": "delivered"}
        delivery |= {"project": "mail", "receiver": hook["id"]}
        async with service.database.begin() as tx:
            await tx.execute(insert(WebhookEndpoint).values(hook))
            named = {
                "project": "mail",
                "name": "mail",
                "backend": "embedded",
                "model_name": "a",
                "step": 1,
                "actor": "a",
            }
            await tx.execute(insert(Promotion).values(named))
            evaluation = {"id": ids["/evaluations/{evaluation_id}"], "project": "mail", "total": 1, "status": "failed"}
            await tx.execute(insert(EvaluationJob).values(evaluation | {"request": {"models": []}}))
            inbox = {
                "id": str(ULID()),
                "project": "mail",
                "kind": "inbox",
                "name": ids["/inboxes/{name}"],
                "version": 1,
            }
            inbox |= {"sha256": "0" * 64, "size": 1, "environment": "email_search", "origin": {"source": "api"}}
            await tx.execute(insert(DatasetVersion).values(inbox))
            await tx.execute(insert(WebhookDelivery).values(delivery | {"id": ids["/webhooks/deliveries/{id}"]}))
        yield Tenants(service, bearer(key.key), await service.headers("sales", Scope), ids)


async def _stored(service: Keyed, key: str, path: str, body: Mapping[str, Any]) -> str:
    reply = await service.client.post(path, headers=bearer(key), json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["sha256"])


async def _demonstrated(service: Keyed, key: str) -> str:
    body = b'{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}'
    reply = await service.client.post("/demonstrations?name=mail", headers=bearer(key), content=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["sha256"])


async def _scheduled(service: Keyed, key: str) -> str:
    body = {"name": "nightly", "cron": "0 2 * * *", "run": RUN, "promoted_name": "live"}
    reply = await service.client.post("/schedules", headers=bearer(key), json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


async def _improvement(service: Keyed, key: str) -> str:
    """One that tried a prompt and was cancelled."""
    prompt = {"parts": {"system": "{original} Be brief."}}
    await service.client.post("/prompts?name=brief", headers=bearer(key), json=prompt)
    body = {"prompts": ["brief"], "rungs": ["prompt"]}
    reply = await service.client.post("/improvements", headers=bearer(key), json=body)
    assert reply.status_code == 202, reply.text
    id = str(reply.json()["id"])
    async with service.database.begin() as tx:
        await tx.execute(update(Improvement).where(Improvement.id == id).values(status="cancelled", pilot=None))
    return id


async def _session(service: Keyed) -> str:
    spec = SessionSpec("mail", PinnedModel("a", "mail/a@1", 1, "embedded", None), timedelta(hours=1))
    return (await AgentSessions(service.database).open(spec)).row.id


def _operations(api: Json) -> list[tuple[str, str]]:
    """Method and path template of every operation with a parameter in its path."""
    operations = [(method.upper(), path) for path, methods in api["paths"].items() for method in methods if "{" in path]
    operations = [
        operation for operation in operations if "{project}" not in operation[1] and "/v1/" not in operation[1]
    ]  # see test_models.py
    assert len(operations) > 30
    return operations


def _filled(template: str, ids: Mapping[str, str], id: str | None = None) -> str:
    """The path with the id of what is mail's, or with another id. KeyError if the template is of an unknown kind."""
    begin = _begin(template, ids)
    path = template.replace(begin, re.sub(r"\{\w+\}", id or ids[begin], begin))
    return re.sub(r"\{(\w+)\}", lambda match: _OTHERS[match[1]], path)


def _begin(template: str, ids: Mapping[str, str]) -> str:
    return max((begin for begin in ids if template.startswith(begin)), key=len, default=template)


async def test_every_operation_with_an_id_says_that_it_does_not_exist(tenants: Tenants, api: Json) -> None:
    for method, template in _operations(api):
        missing = secrets.token_hex(32) if template in _HASHES else str(ULID())
        theirs = _filled(template, tenants.ids)
        not_there = _filled(template, tenants.ids, missing)
        id = tenants.ids[_begin(template, tenants.ids)]
        for query, accept in (("", "*/*"), ("?cursor=nonsense&limit=0", "*/*"), ("", "text/event-stream")):
            more: dict[str, Any] = {"json": {}, "headers": {**tenants.sales, "accept": accept}}
            foreign = await tenants.service.client.request(method, theirs + query, **more)
            absent = await tenants.service.client.request(method, not_there + query, **more)
            assert foreign.content.replace(id.encode(), b"ID") == absent.content.replace(missing.encode(), b"ID")
            assert foreign.status_code == absent.status_code, (method, template)
            if not query:
                assert foreign.status_code == 404, (method, template, foreign.text)


async def test_their_owner_reads_all_of_it(tenants: Tenants, api: Json) -> None:
    """Otherwise the test above would prove nothing."""
    answered = set()
    for method, template in _operations(api):
        if method != "GET":
            continue
        reply = await tenants.service.client.get(_filled(template, tenants.ids), headers=dict(tenants.mail))
        if reply.status_code == 200:
            answered |= {begin for begin in tenants.ids if template.startswith(begin)}
        else:
            assert "There is no run" not in reply.text
    templates = [template for _, template in _operations(api)]
    there = {_begin(template, tenants.ids) for template in templates}
    # Models need the engine; of keys and inboxes there are only lists.
    assert answered == there - {"/keys/{key_id}", "/models/{project}/{name}", "/inboxes/{name}"}
    inbox = tenants.ids["/inboxes/{name}"]
    deleted = await tenants.service.client.delete(f"/inboxes/{inbox}", headers=dict(tenants.mail))
    assert [deletion["name"] for deletion in deleted.json()["deleted"]] == [inbox]
    revoke = f"/keys/{tenants.ids['/keys/{key_id}']}"
    assert (await tenants.service.client.delete(revoke, headers=dict(tenants.mail))).status_code == 200


async def test_lists_have_ones_own_only(tenants: Tenants, api: Json) -> None:
    """Every list without an id in its path: nothing of mail's is in sales' answers."""
    ids = set(tenants.ids.values()) - {"mail"}
    lists_with_mail = 0
    for path, methods in api["paths"].items():
        if "get" not in methods or "{" in path:
            continue
        text = (await tenants.sales_asks("GET", path)).text
        assert not [id for id in ids if id in text], path
        whole = (await tenants.service.client.get(path, headers=dict(tenants.mail))).text
        lists_with_mail += any(id in whole for id in ids)
    assert lists_with_mail >= 2  # runs and keys at least
    assert (await tenants.sales_asks("GET", "/runs", params={"status": "completed"})).json()["items"] == []
    everything = await tenants.service.client.get("/runs", headers=bearer(OPERATOR_KEY))
    assert [run["run_id"] for run in everything.json()["items"]] == [tenants.ids["/runs/{run_id}"]]


async def test_a_learn_loop_is_the_keys_projects(tenants: Tenants) -> None:
    accepted = await tenants.sales_asks("POST", "/learn-loop", json={"iterations": 1})
    tenants.service.client.headers.update(tenants.sales)
    run = await run_with(tenants.service.client, accepted.json()["run_id"], "completed")
    assert run["model"]["project"] == "sales"
    named = await tenants.sales_asks("POST", "/learn-loop", json={"iterations": 1, "model": {"project": "sales"}})
    assert named.status_code == 202
    for project in ("mail", "nobody"):
        refused = await tenants.sales_asks("POST", "/learn-loop", json={"model": {"project": project}})
        assert refused.status_code == 403
        assert "sales" in refused.json()["detail"]


async def test_no_body_can_name_what_is_foreign(tenants: Tenants) -> None:
    """A reference to a foreign thing is answered as one to nothing."""
    run_id, graph = tenants.ids["/runs/{run_id}"], {"sha256": tenants.ids["/graphs/{sha256}"]}
    url = "https://sales.example/hook"
    endpoint_id = str(ULID())
    async with tenants.service.database.begin() as tx:
        hook = {"id": endpoint_id, "project": "sales", "url": url, "events": []}
        await tx.execute(insert(WebhookEndpoint).values(hook))
    prospects = SCENARIOS["scenarios"]
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/webhooks", {"url": url, "run_id": run_id}, run_id),
        (f"/webhooks/{endpoint_id}/replay", {"run_id": run_id}, run_id),
        ("/learn-loop", {"graph": graph}, graph["sha256"]),
        ("/scenarios", {"environment": "sales_email", "scenarios": prospects, "graph": graph}, graph["sha256"]),
        ("/learn-loop", {"model": {"base_model": f"mail/{run_id}@1"}}, run_id),
    ]
    for path, body, id in bodies:
        missing = secrets.token_hex(32) if len(id) == 64 else str(ULID())
        foreign = await tenants.sales_asks("POST", path, json=body)
        absent = await tenants.sales_asks("POST", path, json=json.loads(json.dumps(body).replace(id, missing)))
        assert foreign.status_code in (404, 422), (path, foreign.text)
        assert foreign.text.replace(id, "ID") == absent.text.replace(missing, "ID")
    listed = await tenants.sales_asks("GET", "/webhooks", params={"run_id": run_id})
    assert listed.json()["items"] == []


async def test_what_all_projects_may_use_is_found_by_each(tenants: Tenants) -> None:
    operator = bearer(OPERATOR_KEY)
    graph = [*GRAPH, {"id": "more", "content": "Customer Job: more"}]
    hash = (await tenants.service.client.post("/graphs", headers=operator, json={"graph": graph})).json()["sha256"]
    for headers in (tenants.mail, tenants.sales, operator):
        reply = await tenants.service.client.get(f"/graphs/{hash}", headers=dict(headers))
        assert reply.json() == {"graph": graph}
    theirs = f"/graphs/{tenants.ids['/graphs/{sha256}']}"
    assert (await tenants.service.client.get(theirs, headers=operator)).json() == {"graph": GRAPH}
    # The same content of another project is its own.
    assert (await tenants.sales_asks("GET", theirs)).status_code == 404
    await tenants.sales_asks("POST", "/graphs", json={"graph": GRAPH})
    assert (await tenants.sales_asks("GET", theirs)).json() == {"graph": GRAPH}


async def test_a_run_goes_on_with_its_own_projects_documents(tenants: Tenants) -> None:
    body = {"graph": {"sha256": tenants.ids["/graphs/{sha256}"]}, "iterations": 1}
    accepted = await tenants.service.client.post("/learn-loop", headers=dict(tenants.mail), json=body)
    assert accepted.status_code == 202, accepted.text
    tenants.service.client.headers.update(tenants.mail)
    run = await run_with(tenants.service.client, accepted.json()["run_id"], "completed", "failed")
    assert run["status"] == "completed", run
    graph = await tenants.service.client.get(f"/runs/{run['run_id']}/graph")
    assert graph.json() == {"graph": GRAPH}


async def test_nothing_foreign_can_be_asked(tenants: Tenants) -> None:
    foreign, absent = tenants.ids["/runs/{run_id}"], str(ULID())
    for reference in ({"run_id": foreign}, {"run_id": absent}):
        reply = await tenants.sales_asks("POST", "/ask", json={"question": "why?"} | reference)
        assert reply.status_code == 404
        assert reply.json()["detail"] == f"There is no run {reference['run_id']!r}."
    for model in ("mail/agent", "mail/agent@3", "nobody/agent", "sales/../mail/agent"):
        reply = await tenants.sales_asks("POST", "/ask", json={"question": "why?", "model": model})
        assert reply.status_code == 404
        assert reply.json()["detail"] == f"There is no model {model!r}."


async def test_nothing_foreign_takes_feedback(tenants: Tenants) -> None:
    trajectory_id, run_id = tenants.ids["/trajectories/{trajectory_id}"], tenants.ids["/runs/{run_id}"]
    session_id = tenants.ids["/sessions/{id}"]
    for about in ({"trajectory_id": trajectory_id}, {"run_id": run_id, "iteration": 0}, {"session_id": session_id}):
        event = {"event_id": str(ULID()), "type": "thumbs_up"} | about
        assert (await tenants.sales_asks("POST", "/feedback", json=event)).status_code == 404
        by_owner = await tenants.service.client.post("/feedback", json=event, headers=dict(tenants.mail))
        assert by_owner.json()["accepted"] == 1
    run = await make_run(tenants.service.database, project="sales")
    preferred_id = await make_trajectory(tenants.service.database, run, email())
    event = {"event_id": "a", "type": "preferred", "trajectory_id": preferred_id, "over": trajectory_id}
    assert (await tenants.sales_asks("POST", "/feedback", json=event)).status_code == 404


async def test_an_answer_of_a_model_by_name_belongs_to_who_asked(tenants: Tenants) -> None:
    id = await make_trajectory(tenants.service.database, None, email())
    path = f"/trajectories/{id}"
    for headers in (tenants.mail, tenants.sales):
        assert (await tenants.service.client.get(path, headers=dict(headers))).status_code == 404
    async with tenants.service.database.begin() as tx:
        row = await tx.get_one(Trajectory, id)
        row.project = "sales"
    assert (await tenants.sales_asks("GET", path)).status_code == 200
    assert (await tenants.service.client.get(path, headers=dict(tenants.mail))).status_code == 404
    assert (await tenants.service.client.get(path, headers=bearer(OPERATOR_KEY))).status_code == 200


async def test_users_and_schedules_of_others_are_out_of_reach(tenants: Tenants) -> None:
    schedule = {"name": "mine", "cron": "0 2 * * *", "run": RUN, "promoted_name": "live", "project": "mail"}
    for path, body in (("/users/delete", {"user": "ann", "project": "mail"}), ("/schedules", schedule)):
        refused = await tenants.sales_asks("POST", path, json=body)
        assert (refused.status_code, "belongs to project sales" in refused.json()["detail"]) == (403, True)
    assert (await tenants.sales_asks("GET", "/schedules")).json()["items"] == []
    client, mail = tenants.service.client, dict(tenants.mail)
    opened = await client.post("/sessions", json={"model": "learnloop/tiny", "user": "ann"}, headers=mail)
    session = f"/sessions/{opened.json()['id']}"
    assert (await tenants.sales_asks("POST", "/users/delete", json={"user": "ann"})).json()["deleted"]["sessions"] == 0
    assert (await client.get(session, headers=mail)).status_code == 200
    by_owner = await client.post("/users/delete", json={"user": "ann"}, headers=mail)
    assert by_owner.json()["deleted"]["sessions"] == 1
    assert (await client.get(session, headers=mail)).status_code == 404
