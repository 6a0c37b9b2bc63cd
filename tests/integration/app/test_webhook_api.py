"""Endpoints and deliveries over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import update
from standardwebhooks import Webhook

from learnloop_service.app.db.tables import WebhookDelivery
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.schemas.run_request import RunWebhook
from learnloop_service.app.security.secret_box import secret_box
from learnloop_service.app.webhooks.frontend import keep_frontend_endpoint
from learnloop_service.app.webhooks.sender import FRONTEND_ID
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for
from tests.integration.app.webhook_stage import Stage, stage

URL = "http://127.0.0.1:9999/hook"


@asynccontextmanager
async def _service(
    data_dir: Path, database_url: str, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Stage]]:
    """The service, which may send to this machine, and its database."""
    chosen = settings_for(data_dir, database_url, **{"allowed_private_hosts": "127.0.0.0/8"} | settings)
    async with served(chosen, ScriptedLoop()) as client, stage(database_url) as here:
        yield client, here


async def _created(client: httpx.AsyncClient, **body: Any) -> Any:
    response = await client.post("/webhooks", json={"url": URL} | body)
    assert response.status_code == 201, response.text
    return response.json()


async def test_an_endpoint_from_its_making_to_its_end(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, _):
        endpoint = await _created(client, events=["run.completed"])
        secret = endpoint.pop("secret")
        assert secret.startswith("whsec_")
        assert (endpoint["project"], endpoint["run_id"], endpoint["events"]) == ("learnloop", None, ["run.completed"])
        assert (endpoint["enabled"], endpoint["signed"]) == (True, True)
        assert (await client.get(f"/webhooks/{endpoint['id']}")).json() == endpoint
        assert (await client.get("/webhooks")).json() == {"items": [endpoint], "next_cursor": None}
        changed = await client.patch(
            f"/webhooks/{endpoint['id']}", json={"url": f"{URL}2", "events": [], "enabled": False}
        )
        updated = changed.json()
        assert (updated["url"], updated["events"], updated["enabled"]) == (f"{URL}2", [], False)
        assert updated["disabled_reason"] == "disabled by request"
        on = (await client.patch(f"/webhooks/{endpoint['id']}", json={"enabled": True})).json()
        assert (on["enabled"], on["disabled_reason"], on["url"]) == (True, None, f"{URL}2")
        rotated = (await client.post(f"/webhooks/{endpoint['id']}/rotate-secret", json={"overlap_hours": 1})).json()
        assert rotated["secret"] not in ("", secret)
        assert rotated["previous_secret_until"] is not None
        assert (await client.post(f"/webhooks/{endpoint['id']}/rotate-secret")).status_code == 200
        removed = await client.delete(f"/webhooks/{endpoint['id']}")
        assert (removed.status_code, removed.json()["id"]) == (200, endpoint["id"])
        assert (await client.get(f"/webhooks/{endpoint['id']}")).status_code == 404


async def test_secrets_are_shown_once_and_stored_unreadable(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, _):
        endpoint = await _created(client)
        rotated = (await client.post(f"/webhooks/{endpoint['id']}/rotate-secret")).json()
        canaries = [answer["secret"].removeprefix("whsec_") for answer in (endpoint, rotated)]
        answers = [await client.get(path) for path in ("/webhooks", f"/webhooks/{endpoint['id']}")]
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            rows = await (await connection.execute("SELECT * FROM webhook_endpoint")).fetchall()
        dump = repr(rows) + "".join(answer.text for answer in answers)
        assert not any(canary in dump for canary in canaries)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"url": "http://10.0.0.1/"}, ["body", "url"]),
        ({"url": "http://[::1]/"}, ["body", "url"]),
        ({"url": "ftp://127.0.0.1/"}, ["body", "url"]),
        ({"url": "http://user@127.0.0.1/"}, ["body", "url"]),
        ({"url": "http://127.0.0.1:22/"}, ["body", "url"]),
        ({"url": ""}, ["body", "url"]),
        ({"url": URL, "events": ["run.danced"]}, ["body", "events", 0]),
        ({"url": URL, "secret": "whsec_mine"}, ["body", "secret"]),
        ({"url": URL, "run_id": "r", "project": "p"}, ["body"]),
    ],
)
async def test_what_cannot_be_an_endpoint(
    data_dir: Path, database_url: str, body: dict[str, Any], loc: list[str | int]
) -> None:
    async with _service(data_dir, database_url) as (client, _):
        response = await client.post("/webhooks", json=body)
        assert response.status_code == 422
        assert response.json()["errors"][0]["loc"] == loc
        endpoint = await _created(client)
        if body["url"] != URL:
            assert (await client.patch(f"/webhooks/{endpoint['id']}", json=body)).status_code == 422


async def test_private_addresses_are_refused_unless_the_operator_admits_them(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url, allowed_private_hosts=()) as (client, _):
        response = await client.post("/webhooks", json={"url": URL})
        assert response.json()["detail"] == "the host '127.0.0.1' has an address that is not public"


async def test_what_is_not_there(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, here):
        endpoint, run_id = await _created(client), await here.run("elsewhere")
        for method, path, body in [
            ("GET", "/webhooks/none", None),
            ("PATCH", "/webhooks/none", {}),
            ("DELETE", "/webhooks/none", None),
            ("POST", "/webhooks/none/rotate-secret", {}),
            ("POST", "/webhooks/none/test", None),
            ("GET", "/webhooks/none/deliveries", None),
            ("POST", "/webhooks/none/replay", {"run_id": run_id}),
            ("POST", f"/webhooks/{endpoint['id']}/replay", {"run_id": "none"}),
            ("POST", f"/webhooks/{endpoint['id']}/replay", {"run_id": run_id}),
            ("GET", "/webhooks/deliveries/none", None),
            ("POST", "/webhooks/deliveries/none/redeliver", None),
            ("POST", "/webhooks", {"url": URL, "run_id": "none"}),
        ]:
            response = await client.request(method, path, json=body)
            assert response.status_code == 404, (method, path)


async def test_a_test_message_is_sent_at_once_and_signed(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, _), faulty_receiver(lambda n: ["200 OK", "302 X"][n]) as it:
        endpoint = await _created(client, url=it.url)
        good = (await client.post(f"/webhooks/{endpoint['id']}/test")).json()
        assert (good["delivered"], good["status"], good["error"]) == (True, 200, None)
        Webhook(endpoint["secret"]).verify(it.arrivals[0].raw, it.arrivals[0].headers)
        assert it.arrivals[0].body["type"] == "webhook.test"
        bad = (await client.post(f"/webhooks/{endpoint['id']}/test")).json()
        assert (bad["delivered"], bad["status"], bad["error"]) == (False, 302, "the receiver answered 302")


async def test_deliveries_are_listed_shown_and_sent_again(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, here):
        endpoint, run_id = await _created(client), await here.run("learnloop")
        for _ in range(3):
            await here.event(run_id)
        first, *_ = rows = await here.deliveries()
        await _settle(here, {rows[0].id: "failed", rows[1].id: "delivered"})
        path = f"/webhooks/{endpoint['id']}/deliveries"
        page = (await client.get(path, params={"limit": 2})).json()
        assert [item["event_seq"] for item in page["items"]] == [3, 2]
        rest = (await client.get(path, params={"limit": 2, "cursor": page["next_cursor"]})).json()
        assert ([item["id"] for item in rest["items"]], rest["next_cursor"]) == ([first.id], None)
        failed = (await client.get(path, params={"state": "failed"})).json()["items"]
        assert [item["id"] for item in failed] == [first.id]
        whole = (await client.get(f"/webhooks/deliveries/{first.id}")).json()
        assert (whole["body"], whole["event_type"]) == (first.body, "phase.completed")
        assert [attempt["number"] for attempt in whole["tries"]] == [
            attempt.number for attempt in await here.attempts(first.id)
        ]
        again = await client.post(f"/webhooks/deliveries/{first.id}/redeliver")
        assert (again.status_code, again.json()["state"], again.json()["attempts"]) == (202, "pending", 0)
        await client.patch(f"/webhooks/{endpoint['id']}", json={"enabled": False})
        assert (await client.post(f"/webhooks/deliveries/{first.id}/redeliver")).status_code == 409
        await client.delete(f"/webhooks/{endpoint['id']}")
        assert (await client.post(f"/webhooks/deliveries/{first.id}/redeliver")).status_code == 409


async def _settle(here: Stage, states: dict[str, str]) -> None:
    async with here.database.begin() as tx:
        for id, state in states.items():
            await tx.execute(update(WebhookDelivery).where(WebhookDelivery.id == id).values(state=state))


async def test_a_replay_sends_old_events_again_and_unknown_ones_for_the_first_time(
    data_dir: Path, database_url: str
) -> None:
    async with _service(data_dir, database_url) as (client, here), faulty_receiver(lambda _: "500 Oops") as it:
        run_id = await here.run("learnloop")
        for kind in (EventType.RUN_STARTED, EventType.PHASE_COMPLETED):
            await here.event(run_id, kind)
        endpoint = await _created(client, url=it.url, events=["run.started", "run.completed"])
        await here.event(run_id, EventType.RUN_COMPLETED)
        [delivery] = await here.deliveries()
        await _settle(here, {delivery.id: "delivered"})
        answer = await client.post(f"/webhooks/{endpoint['id']}/replay", json={"run_id": run_id})
        assert (answer.status_code, answer.json()) == (202, {"queued": 2, "next_after_seq": None})
        rows = await here.deliveries()
        assert sorted((row.event_seq, row.state) for row in rows) == [(1, "pending"), (3, "pending")]
        assert delivery.id in {row.id for row in rows}
        later = await client.post(f"/webhooks/{endpoint['id']}/replay", json={"run_id": run_id, "after_seq": 3})
        assert later.json()["queued"] == 0


async def test_a_long_replay_goes_on_where_it_stopped(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.webhooks.deliveries.REPLAY_BATCH", 2)
    async with _service(data_dir, database_url) as (client, here):
        run_id = await here.run("learnloop")
        for _ in range(3):
            await here.event(run_id)
        endpoint = await _created(client)
        path, body = f"/webhooks/{endpoint['id']}/replay", {"run_id": run_id}
        first = (await client.post(path, json=body)).json()
        assert first == {"queued": 2, "next_after_seq": 2}
        second = (await client.post(path, json=body | {"after_seq": 2})).json()
        assert second == {"queued": 1, "next_after_seq": None}
        assert [row.event_seq for row in await here.deliveries()] == [1, 2, 3]


async def test_a_runs_own_endpoints_are_made_with_it(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, here):
        run_id = await here.run("learnloop")
        hooks = [RunWebhook(url=URL), RunWebhook(url=f"{URL}2", events=[EventType.RUN_FAILED])]
        await here.endpoints.check(hooks)
        async with here.database.begin() as tx:
            attached = await here.endpoints.attach(tx, run_id, "learnloop", hooks)
        assert [new.row.url for new in attached] == [URL, f"{URL}2"]
        assert len({new.secret for new in attached}) == 2
        listed = (await client.get("/webhooks", params={"run_id": run_id})).json()["items"]
        assert sorted(item["id"] for item in listed) == sorted(new.row.id for new in attached)
        of_run = await _created(client, run_id=run_id)
        assert (of_run["run_id"], of_run["project"]) == (run_id, "learnloop")


async def test_the_operators_endpoint_follows_the_settings_and_nobody_else(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, here), faulty_receiver(lambda _: "500 Oops") as it:
        secret = "whsec_" + "A" * 32

        async def started_with(**more: Any) -> Any:
            settings = settings_for(data_dir, database_url, **more)
            box = secret_box(settings.secret_key, data_dir)
            await keep_frontend_endpoint(here.database, settings.frontend_url, settings.frontend_webhook_secret, box)
            return (await client.get(f"/webhooks/{FRONTEND_ID}")).json()

        endpoint = await started_with(frontend_url=it.url)
        assert (endpoint["url"], endpoint["events"], endpoint["signed"]) == (it.url, ["iteration.completed"], False)
        assert (endpoint["project"], endpoint["enabled"]) == (None, True)
        assert (await started_with(frontend_url=it.url, frontend_webhook_secret=secret))["signed"] is True
        for method, path, body in [
            ("PATCH", "", {"url": URL}),
            ("PATCH", "", {"enabled": False}),
            ("DELETE", "", None),
            ("POST", "/rotate-secret", None),
        ]:
            assert (await client.request(method, f"/webhooks/{FRONTEND_ID}{path}", json=body)).status_code == 409
        await here.event(await here.run("any"), EventType.ITERATION_COMPLETED)
        await here.event(await here.run("any"), EventType.RUN_STARTED)
        assert [row.endpoint_id for row in await here.deliveries()] == [FRONTEND_ID]
        gone = await started_with()
        assert (gone["enabled"], gone["disabled_reason"]) == (False, "FRONTEND_URL is not set any more")
        assert [row.state for row in await here.deliveries()] == ["failed"]
        assert (await started_with(frontend_url=it.url))["enabled"] is True


async def test_a_project_has_so_many_endpoints_and_no_more(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.webhooks.endpoints.MAX_ENDPOINTS", 2)
    async with _service(data_dir, database_url) as (client, _):
        for project, status in [("a", 201), ("a", 201), ("a", 409), ("b", 201)]:
            assert (await client.post("/webhooks", json={"url": URL, "project": project})).status_code == status
