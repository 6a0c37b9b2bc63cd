"""Every event reaches every receiver that wants it, in order, recognisable, whatever fails on the way."""

import random
from collections import defaultdict
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select, update
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from learnloop_service.app.db.tables import WebhookEndpoint
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.webhooks.deliveries import Deliveries
from learnloop_service.app.webhooks.dispatcher import Dispatcher
from learnloop_service.app.webhooks.retries import JITTER, RETRY_DELAYS_S
from tests.conditions import answered, until
from tests.connections import end_connections
from tests.fakes.faulty_receiver import Fault, faulty_receiver
from tests.integration.app.webhook_stage import Stage, stage

SEED = 20260314


def _faults(seed: int) -> Any:
    """Three requests in ten go wrong, in every way."""
    chance = random.Random(seed)
    kinds: list[Fault | str] = ["drop", "reset", "hang", "500 Oops", "302 Found\r\nLocation: http://127.0.0.1:9/"]
    kinds += ["429 Too Many\r\nRetry-After: 0", "503 Busy\r\nRetry-After: x", "404 Not Here"]
    return lambda number: chance.choice(kinds) if chance.random() < 0.3 else "200 OK"


async def test_every_event_arrives_in_order_whatever_fails(database_url: str) -> None:
    """R11 in short: two dispatchers, of which one after the other is killed, and a receiver that fails at random."""
    async with stage(database_url) as here, faulty_receiver(_faults(SEED)) as receiver:
        endpoint = await here.endpoint(receiver.url)
        runs = [await here.run() for _ in range(5)]
        events = {(run_id, await here.event(run_id, number=number)) for number in range(16) for run_id in runs}
        options: dict[str, Any] = {"timeout_s": 0.5, "visibility_timeout_s": 1.5, "retry_delays_s": (0.01,) * 40}
        here.dispatcher(**options)
        for _ in range(6):
            victim = here.dispatcher(**options)
            requests_before = receiver.requests
            await until(lambda: receiver.requests >= requests_before + 8 or not victim._sending)  # noqa: B023
            await victim.close(grace_s=0)
        rows = await here.settled(60)
        assert {row.state for row in rows} == {"delivered"}, SEED
        assert {(row.run_id, row.event_seq) for row in rows} == events
        assert {arrival.id for arrival in receiver.accepted()} == {row.id for row in rows}, SEED
        bodies = {row.id: row.body.encode() for row in rows}
        assert all(arrival.raw == bodies[arrival.id] for arrival in receiver.arrivals)
        for arrival in receiver.arrivals:
            Webhook(endpoint.secret).verify(arrival.raw, arrival.headers)
        first: dict[str, list[int]] = defaultdict(list)
        for body in (receipt.body for receipt in receiver.accepted()):
            if body["seq"] not in first[body["run_id"]]:
                first[body["run_id"]].append(body["seq"])
        assert all(seqs == sorted(seqs) for seqs in first.values()), SEED
        assert len(await here.attempts()) >= receiver.requests > len(rows)


async def test_several_dispatchers_send_each_message_once(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver() as receiver:
        await here.endpoint(receiver.url)
        runs = [await here.run() for _ in range(8)]
        for run_id in runs * 6:
            await here.event(run_id)
        for _ in range(3):
            here.dispatcher()
        rows = await here.settled()
        assert sorted(arrival.id for arrival in receiver.arrivals) == sorted(row.id for row in rows)


async def test_receivers_that_hang_hold_up_nobody_else(database_url: str) -> None:
    async with (
        stage(database_url) as here,
        faulty_receiver(lambda number: "hang") as dead,
        faulty_receiver() as well,
    ):
        hanging = {(await here.endpoint(dead.url)).row.id for _ in range(3)}
        for _ in range(10):
            await here.endpoint(well.url)
        for run_id in [await here.run() for _ in range(5)]:
            for _ in range(2):
                await here.event(run_id)
        here.dispatcher(timeout_s=600, visibility_timeout_s=1200, concurrency=16)  # a project has half of them

        async def waiting() -> set[str | None]:
            return {row.endpoint_id for row in await here.deliveries() if row.state == "pending"}

        await answered(waiting, lambda endpoint_ids: endpoint_ids == hanging, 60)
        assert len(well.arrivals) == 100
        assert dead.hanging == 6  # two for each endpoint, not all five runs' firsts


async def test_the_table_of_retries_to_its_end_and_a_dead_letter_that_comes_back(database_url: str) -> None:
    """R13: the clock is the database's, so that the test lets it pass by moving what is due."""
    async with (
        stage(database_url) as here,
        faulty_receiver(lambda number: "500 Oops" if number < 10 else "200 OK") as it,
    ):
        await here.endpoint(it.url)
        run_id = await here.run()
        await here.event(run_id)
        [row] = await here.deliveries()
        dispatcher = here.dispatcher()
        for number, planned in enumerate(RETRY_DELAYS_S, 1):
            await _noted(here, row.id, number)
            [row], last = await here.deliveries(), (await here.attempts(row.id))[-1]
            assert (row.state, last.status) == ("pending", 500)
            pause = (row.next_attempt_at - last.started_at).total_seconds()
            assert planned * (1 - JITTER) <= pause <= planned * (1 + JITTER) + 60
            await here.due_now(row.id)
            dispatcher.wake()
        [row] = await here.settled()
        assert (row.state, row.attempts, row.last_error) == ("failed", 10, "the receiver answered 500")

        await Deliveries(here.database).redeliver(row.id)
        dispatcher.wake()
        [row] = await here.settled()
        assert (row.state, row.attempts) == ("delivered", 1)
        assert [attempt.number for attempt in await here.attempts(row.id)] == list(range(1, 12))
        assert len({(arrival.id, arrival.raw) for arrival in it.arrivals}) == 1
        assert len(it.arrivals) == 11


async def _noted(here: Stage, id: str, number: int) -> None:
    """Waits until that attempt's outcome is saved."""

    async def numbers() -> list[int]:
        return [attempt.number for attempt in await here.attempts(id) if attempt.seconds is not None]

    await answered(numbers, lambda listed: number in listed)


async def test_a_receiver_that_asks_for_time_gets_it(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda _: "429 Wait\r\nRetry-After: 7000") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        [row] = await here.deliveries()
        here.dispatcher()
        await _noted(here, row.id, 1)
        [row], [attempt] = await here.deliveries(), await here.attempts()
        assert timedelta(seconds=7000) <= row.next_attempt_at - attempt.started_at < timedelta(seconds=7100)


async def test_a_receiver_that_is_gone_is_not_asked_again(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda _: "410 Gone") as it:
        endpoint = await here.endpoint(it.url)
        first, second = await here.run(), await here.run()
        for run_id in (first, first, second):
            await here.event(run_id)
        here.dispatcher()
        rows = await here.settled()
        assert {row.state for row in rows} == {"failed"}
        assert it.requests <= 2  # the firsts of both runs may be on their way at once
        disabled = await here.shown(endpoint.row.id)
        assert disabled.disabled_reason == "the receiver answered 410: it wants no more"
        await here.event(first)
        assert len(await here.deliveries()) == 3


async def test_a_dispatcher_that_dies_leaves_a_trace_and_the_message_is_sent_again(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda n: "hang" if n == 0 else "200 OK") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        killed = here.dispatcher(visibility_timeout_s=0.2)
        await until(lambda: it.hanging == 1)
        await killed.close(grace_s=0)
        [begun] = await here.attempts()
        assert (begun.seconds, begun.status, begun.error) == (None, None, None)
        here.dispatcher()
        [row] = await here.settled()
        begun, repeated = await here.attempts()
        assert (row.state, begun.seconds, repeated.number, repeated.status) == ("delivered", None, 2, 200)


async def test_a_message_that_kills_its_sender_is_given_up(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda _: "hang") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        for number in (1, 2):
            killed = here.dispatcher(retry_delays_s=(0.0,), visibility_timeout_s=0.0)
            await until(lambda: it.hanging >= number)  # noqa: B023
            await killed.close(grace_s=0)
        here.dispatcher(retry_delays_s=(0.0,))
        [row] = await here.settled()
        assert (row.state, row.last_error) == (
            "failed",
            "given up: the service stopped in the middle of every attempt",
        )


async def test_an_outcome_waits_for_the_database(database_url: str) -> None:
    """The database goes away while the receiver works: its answer is not lost and it is not asked twice."""
    async with stage(database_url) as here, faulty_receiver(lambda _: "hang") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        here.dispatcher(timeout_s=60)
        await until(lambda: it.hanging == 1)
        name = database_url.partition("?")[0].rpartition("/")[2]
        conninfo = database_url.replace(f"/{name}", "/postgres", 1)
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as admin:
            await admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false".encode())
            await end_connections(admin, name)
            with capture_logs() as logs:
                it.released.set()
                await until(lambda: any("could not be saved" in entry["event"] for entry in logs))
            await admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true".encode())
        [row] = await here.settled()
        assert (row.state, row.attempts, len(it.arrivals)) == ("delivered", 1, 1)


async def test_only_endpoints_that_want_an_event_get_it(database_url: str) -> None:
    async with stage(database_url) as here:
        run_id, sibling, stranger = await here.run(), await here.run(), await here.run("q")
        new = {
            "all": await here.endpoint("http://a.example/"),
            "ends": await here.endpoint("http://b.example/", "run.completed", "run.failed"),
            "of run": await here.endpoint("http://c.example/", run_id=run_id),
            "off": await here.endpoint("http://d.example/"),
            "other": await here.endpoint("http://e.example/", project="q"),
        }
        names = {endpoint.row.id: name for name, endpoint in new.items()}
        off = update(WebhookEndpoint).where(WebhookEndpoint.id == new["off"].row.id)
        async with here.database.begin() as tx:
            await tx.execute(off.values(disabled_at=func.now()))
        await here.event(run_id, EventType.RUN_STARTED)
        await here.event(run_id, EventType.RUN_COMPLETED)
        await here.event(sibling, EventType.RUN_FAILED)
        await here.event(stranger, EventType.RUN_STARTED)
        got = [(names[row.endpoint_id or ""], row.event_type) for row in await here.deliveries()]
        assert sorted(got) == [
            ("all", "run.completed"),
            ("all", "run.failed"),
            ("all", "run.started"),
            ("ends", "run.completed"),
            ("ends", "run.failed"),
            ("of run", "run.completed"),
            ("of run", "run.started"),
            ("other", "run.started"),
        ]


async def test_the_body_has_the_events_data_beside_what_every_event_has(database_url: str) -> None:
    async with stage(database_url) as here:
        await here.endpoint("http://a.example/")
        run_id = await here.run()
        email = {"subject": "Grüße", "body": "…", "citations": ["n1"]}
        await here.event(run_id, EventType.ITERATION_COMPLETED, final_email=email, node_scores={"n1": 0.5}, seq=99)
        [row] = await here.deliveries()
        async with faulty_receiver() as it:
            async with here.database.begin() as tx:
                await tx.execute(update(WebhookEndpoint).values(url=it.url))
            here.dispatcher()
            await here.settled()
        body = it.arrivals[0].body
        assert body["final_email"] == email
        assert body["node_scores"] == {"n1": 0.5}
        assert (body["run_id"], body["seq"], body["version"], body["type"]) == (run_id, 1, 1, "iteration.completed")
        assert body["timestamp"].endswith("Z")
        assert len(body["timestamp"]) == len("2026-03-14T09:30:00.000Z")
        assert it.arrivals[0].id == row.id


async def test_an_event_that_is_rolled_back_was_never_told(database_url: str) -> None:
    async with stage(database_url) as here:
        await here.endpoint("http://a.example/")
        run_id = await here.run()
        async with here.database() as tx:
            await append(tx, run_id, EventType.RUN_STARTED, "local")
            await tx.rollback()
        assert await here.deliveries() == []


async def test_in_a_rotation_both_secrets_sign_and_afterwards_only_the_new_one(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver() as it:
        old = await here.endpoint(it.url)
        new = await here.endpoints.rotate(old.row.id, 1)
        run_id = await here.run()
        await here.event(run_id)
        here.dispatcher()
        await here.settled()
        for secret in (old.secret, new.secret):
            Webhook(secret).verify(it.arrivals[0].raw, it.arrivals[0].headers)
        async with here.database.begin() as tx:
            await tx.execute(update(WebhookEndpoint).values(previous_until=func.now()))
        await here.event(run_id)
        await here.settled()
        last = it.arrivals[-1]
        Webhook(new.secret).verify(last.raw, last.headers)
        assert last.headers["webhook-signature"].count("v1,") == 1


async def test_the_timestamp_is_the_attempts_own(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda n: "500 Oops" if n == 0 else "200 OK") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        here.dispatcher(retry_delays_s=(1.5,))
        await here.settled()
        first, second = (int(arrival.headers["webhook-timestamp"]) for arrival in it.arrivals)
        assert second > first
        attempts = [(attempt.started_at.timestamp(), attempt.seconds or 0.0) for attempt in await here.attempts()]
        for sent_at, (started, seconds) in zip((first, second), attempts, strict=True):
            assert int(started) <= sent_at <= started + seconds + 1


async def test_an_endpoint_that_leads_inside_is_refused_when_it_is_sent_to(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver() as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        here.dispatcher(guard=AddressGuard(), retry_delays_s=())
        [row] = await here.settled()
        assert (row.state, row.last_error) == ("failed", "the host '127.0.0.1' has an address that is not public")
        assert it.requests == 0


async def test_proxies_of_the_environment_are_not_used(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(database_url) as here, faulty_receiver() as it, faulty_receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        await here.endpoint(it.url)
        await here.event(await here.run())
        here.dispatcher()
        await here.settled()
        assert (it.requests, proxy.requests) == (1, 0)


async def test_what_waits_for_a_deleted_endpoint_goes_nowhere(database_url: str) -> None:
    """Without its endpoint a delivery has neither secret nor guard; also one that was queued at the same moment."""
    async with stage(database_url) as here, faulty_receiver() as it:
        endpoint = await here.endpoint(it.url)
        await here.event(await here.run())
        [row] = await here.deliveries()
        await here.endpoints.remove(endpoint.row.id)
        async with here.database.begin() as tx:
            await tx.execute(update(type(row)).values(state="pending"))
        here.dispatcher()
        [row] = await here.settled()
        assert (row.state, row.endpoint_id, row.last_error) == (
            "failed",
            None,
            "the endpoint was deleted or is disabled",
        )
        assert it.requests == 0
        async with here.database() as tx:
            assert (await tx.execute(select(func.count(WebhookEndpoint.id)))).scalar_one() == 0


async def test_closing_lets_what_is_on_its_way_arrive(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda _: "hang") as it:
        await here.endpoint(it.url)
        await here.event(await here.run())
        dispatcher: Dispatcher = here.dispatcher()
        await until(lambda: it.hanging == 1)
        it.released.set()
        await dispatcher.close(grace_s=10)
        [row] = await here.deliveries()
        assert (row.state, row.attempts) == ("delivered", 1)
