"""`GET /metrics` as Prometheus reads it: what it holds, for whom, and what a scrape costs."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url

from learnloop_service.app.auth.keys import Keys
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.main import open_worker_app
from learnloop_service.app.metrics import database
from learnloop_service.app.resources import open_resources
from learnloop_service.training.phases import Phase
from tests.conditions import answered
from tests.connections import end_connections
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.keyed import OPERATOR_KEY, bearer, keyed
from tests.integration.app.scraped_metrics import figure, scrape, value
from tests.integration.app.served import run_with, served, settings_for


@pytest.fixture
async def client(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as service_client:
        yield service_client


async def test_the_client_library_reads_it_in_both_formats_and_names_follow_the_convention(
    client: httpx.AsyncClient,
) -> None:
    text = (await client.get("/metrics")).text
    plain = {family.name: family for family in text_string_to_metric_families(text)}
    response = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = openmetrics_families(response.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == plain.keys()
    ours = {name: family for name, family in plain.items() if name.startswith("learnloop_")}
    assert len(ours) > 30
    for name, family in ours.items():
        assert family.documentation.endswith("."), name
        assert family.type in ("counter", "gauge", "histogram"), name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name
        assert not re.search(r"_(ms|millis|minutes|hours|kb|mb|percent|s)$", name), name
        assert f"{name}_created" not in text
        for sample in family.samples:
            assert not {"run_id", "trajectory_id", "project", "path", "model"} & sample.labels.keys(), name
    assert {"process_resident_memory_bytes", "process_cpu_seconds"} <= plain.keys()
    for odd in ("text/plain;version=x", "application/openmetrics-text;version=x;escaping=y", "*/*", "\u00e9"):
        headers = [(b"accept", odd.encode("latin-1"))]
        assert (await client.get("/metrics", headers=headers)).status_code == 200


async def test_a_run_is_counted_by_the_process_that_drives_it(client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    accepted = await client.post("/learn-loop", json={"iterations": 2})
    run = await run_with(client, accepted.json()["run_id"], "completed")
    after = await scrape(client)

    def counted(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert counted("learnloop_runs_claimed_total") == 1
    assert counted("learnloop_runs_ended_total", status="completed") == 1
    assert counted("learnloop_iteration_duration_seconds_count") == 3
    assert counted("learnloop_iteration_duration_seconds_sum") == 6.0
    assert counted("learnloop_phase_duration_seconds_count", phase=Phase.ROLLOUT) == 3
    train = counted("learnloop_rollouts_total", kind="train", outcome="ok")
    evaluation = counted("learnloop_rollouts_total", kind="evaluation", outcome="ok")
    assert (train, evaluation) == (4, 6)
    assert train + evaluation == run["rollouts"]
    assert counted("learnloop_tokens_total", kind="completion") == 20 * (train + evaluation)
    assert counted("learnloop_groups_total", result="trained") == 2
    assert value(after, "learnloop_worker_runs") == value(before, "learnloop_worker_runs")
    assert value(after, "learnloop_runs", status="completed") == 1
    assert value(after, "learnloop_runs", status="failed") == 0
    route = {"method": "POST", "route": "/learn-loop"}
    assert counted("learnloop_http_requests_total", status="202", **route) == 1
    assert counted("learnloop_http_request_duration_seconds_count", **route) == 1


async def test_the_figures_of_the_database_are_the_same_in_every_process(data_dir: Path, database_url: str) -> None:
    """Two services on one database, neither of which drives runs."""
    first, second = (settings_for(data_dir / name, database_url, max_concurrent_runs=0) for name in ("first", "second"))
    async with served(first, ScriptedLoop()) as one, served(second, ScriptedLoop()) as other:
        for _ in range(3):
            await one.post("/learn-loop", json={"iterations": 1})
        run_id = (await other.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await one.post(f"/runs/{run_id}/pause")
        for replica in (one, other):
            figures = await scrape(replica)
            assert value(figures, "learnloop_runs", status="queued") == 3
            assert value(figures, "learnloop_runs", status="paused") == 1
            assert value(figures, "learnloop_queue_age_seconds") > 0
        await other.post(f"/runs/{run_id}/resume")  # it waits since then, not since it was accepted
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            hours = "now() - interval '2 hours'"
            await connection.execute(f"UPDATE run SET created_at = {hours}".encode())
            await connection.execute(f"UPDATE event SET occurred_at = {hours} WHERE type = 'run.created'".encode())
            assert 7_200 <= value(await scrape(one), "learnloop_queue_age_seconds") < 7_300
            await connection.execute("DELETE FROM run WHERE id <> %s", [run_id])
            assert value(await scrape(one), "learnloop_queue_age_seconds") < 3_600
        open_streams = partial(figure, one, "learnloop_event_streams")
        idle = await open_streams()
        headers = {"accept": "text/event-stream"}
        async with one.stream("GET", f"/runs/{run_id}/events", headers=headers, timeout=30) as stream:
            parts = stream.aiter_text()
            await anext(parts)
            assert await open_streams() == idle + 1
        await answered(open_streams, lambda count: count == idle)


async def test_orphaned_runs_and_webhooks(data_dir: Path, database_url: str) -> None:
    async with receiver() as listening:
        settings = settings_for(data_dir, database_url, max_concurrent_runs=0, allowed_private_hosts="127.0.0.0/8")
        async with (
            served(settings, ScriptedLoop()) as client,
            await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
        ):
            delivered_count = partial(figure, client, "learnloop_webhook_attempts_total", outcome="delivered")
            before = await delivered_count()
            (await client.post("/webhooks", json={"url": listening.url})).raise_for_status()
            run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
            assert await figure(client, "learnloop_runs_orphaned") == 0
            await answered(delivered_count, lambda count: count > before)
            await connection.execute(
                b"UPDATE run SET status = 'running', wait_reason = 'x', lease_until = now() WHERE id = %s", [run_id]
            )
            await connection.execute(
                b"UPDATE webhook_delivery SET state = 'pending', next_attempt_at = now() + interval '1 day',"
                b" created_at = now() - interval '1 hour'"
            )
            await connection.execute(
                b"INSERT INTO webhook_delivery (id, run_id, project, receiver, is_next, url, body, state, attempts)"
                b" VALUES (%s, %s, 'p', 'r', false, 'http://127.0.0.1:9/', '{}', 'failed', 8)",
                ["0" * 26, run_id],
            )
            figures = await scrape(client)
    assert value(figures, "learnloop_runs_orphaned") == 1
    assert value(figures, "learnloop_runs_waiting") == 1
    assert value(figures, "learnloop_webhook_deliveries", state="pending") >= 1
    assert value(figures, "learnloop_webhook_deliveries", state="failed") == 1
    assert 3_600 <= value(figures, "learnloop_webhook_lag_seconds") < 3_700


async def test_who_may_read_them(data_dir: Path, database_url: str) -> None:
    """They are about all projects."""
    async with keyed(data_dir, database_url, rate_per_s=0) as service:
        reader = await service.headers("*", [Scope.READ])
        assert value(await scrape(service.client, reader), "learnloop_database_up") == 1
        assert value(await scrape(service.client, bearer(OPERATOR_KEY)), "learnloop_database_up") == 1
        for headers, status in (({}, 401), (await service.headers("mail"), 403)):
            response = await service.client.get("/metrics", headers=headers)
            assert response.status_code == status
            assert "learnloop_" not in response.text
        writer = await service.headers("*", [Scope.WRITE])
        assert (await service.client.get("/metrics", headers=writer)).status_code == 403
        await service.client.post("/session", headers=await service.headers("mail"))
        assert (await service.client.get("/metrics")).status_code == 403  # with the cookie


async def test_a_worker_asks_for_the_same_keys(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, require_keys="always", operator_key=OPERATOR_KEY)
    async with (
        open_resources(settings, ScriptedBackend().connect, None) as resources,
        open_worker_app(resources) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client,
    ):
        project = await Keys(resources.database).create(project="mail", name="a", scopes=[Scope.READ])
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=bearer(project.key))).status_code == 403
        assert value(await scrape(client, bearer(OPERATOR_KEY)), "learnloop_database_up") == 1
        for path in ("/runs", "/keys", "/docs", "/openapi.json", "/session"):
            assert (await client.get(path, headers=bearer(OPERATOR_KEY))).status_code == 404, path


async def test_no_request_adds_series(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url, rate_per_s=0) as service:
        operator = bearer(OPERATOR_KEY)

        async def ask(number: int) -> None:
            for path in (f"/runs/{number}", f"/nothing/{number}", f"/runs/{number}/events?after={number}"):
                await service.client.get(path, headers=operator)
                await service.client.get(path)
                await service.client.request(f"ODD{number}", path, headers=operator)
            await service.client.post(f"/runs/{number}/pause", headers=operator)

        await ask(0)
        before = await scrape(service.client, operator)
        for number in range(1, 30):
            await ask(number)
        after = await scrape(service.client, operator)
    assert after.keys() - before.keys() <= {key for key in after if "le" in dict(key[1])}
    count_after = value(after, "learnloop_http_requests_total", method="GET", route="/runs/{run_id}", status="404")
    count_before = value(before, "learnloop_http_requests_total", method="GET", route="/runs/{run_id}", status="404")
    assert count_after - count_before == 29


async def test_many_who_scrape_use_one_connection(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, read = 0, 0, database.read

    async def counted(*arguments: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await read(*arguments)
        finally:
            under_way -= 1

    monkeypatch.setattr(database, "read", counted)
    replies = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert {reply.status_code for reply in replies} == {200}
    assert most == 1


async def test_without_the_database_it_still_answers(
    client: httpx.AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(database_url)
    conninfo = f"host='{url.query['host']}' user=postgres dbname=postgres"
    before = await scrape(client)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as admin:
        await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false".encode())
        await end_connections(admin, str(url.database))
        away = await scrape(client)
        await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true".encode())
    assert ("learnloop_runs", frozenset({("status", "queued")})) in before
    assert not [name for name, _ in away if name in ("learnloop_runs", "learnloop_queue_age_seconds")]
    lacking = "learnloop_scrapes_without_database_total"
    assert value(away, lacking) == value(before, lacking) + 1
    assert value(away, "learnloop_database_pool_size") == 7
