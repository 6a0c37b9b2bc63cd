"""Projects, receivers and runs take turns; what waits for one endpoint is bounded."""

import pytest
from sqlalchemy import select

from learnloop_service.app.db.tables import WebhookDelivery
from learnloop_service.app.errors import Conflict
from learnloop_service.app.webhooks import deliveries as deliveries_module
from learnloop_service.app.webhooks import outbox
from learnloop_service.app.webhooks.deliveries import Deliveries
from tests.conditions import until
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.webhook_stage import Stage, stage


async def turns(here: Stage) -> list[tuple[int | None, str, bool]]:
    """Number, state and turn of each delivery, in the order of events."""
    row = WebhookDelivery
    async with here.database() as tx:
        selected = await tx.execute(select(row.event_seq, row.state, row.is_next).order_by(row.event_seq))
        return [(seq, state, is_next) for seq, state, is_next in selected]


async def test_a_project_whose_receivers_hang_leaves_slots_for_the_others(database_url: str) -> None:
    async with stage(database_url) as here, faulty_receiver(lambda _: "hang") as hanging, receiver() as quiet:
        for _ in range(6):
            await here.endpoint(hanging.url, project="noisy")
        runs = [await here.run("noisy") for _ in range(4)]
        for run_id in runs:
            await here.event(run_id)
        dispatcher = here.dispatcher(concurrency=4)
        await until(lambda: hanging.requests >= 2)
        await here.endpoint(quiet.url, project="quiet")
        await here.event(await here.run("quiet"), number=1)
        dispatcher.wake()
        await until(lambda: len(quiet.received) == 1)
        assert len(dispatcher._sending) < 4


async def test_only_the_first_pending_one_of_a_run_has_its_turn(database_url: str) -> None:
    async with stage(database_url) as here, receiver() as it:
        await here.endpoint(it.url)
        run_id = await here.run()
        for number in range(3):
            await here.event(run_id, number=number)
        assert await turns(here) == [(1, "pending", True), (2, "pending", False), (3, "pending", False)]
        here.dispatcher()
        await here.settled()
        assert [body["seq"] for body in it.bodies()] == [1, 2, 3]
        await here.event(run_id)
        await here.settled()
        assert len(it.received) == 4


async def test_what_is_sent_again_comes_before_what_waits(database_url: str) -> None:
    async with stage(database_url) as here, receiver() as it:
        endpoint = await here.endpoint(it.url)
        run_id = await here.run()
        await here.event(run_id)
        dispatcher = here.dispatcher()
        (first,) = await here.settled()
        await dispatcher.close()
        await here.event(run_id)
        await here.event(run_id)
        await Deliveries(here.database).redeliver(first.id)
        assert await turns(here) == [(1, "pending", True), (2, "pending", False), (3, "pending", False)]
        await Deliveries(here.database).replay(endpoint.row.id, run_id, 0)
        assert [is_next for *_, is_next in await turns(here)] == [True, False, False]
        here.dispatcher()
        await here.settled()
        assert [body["seq"] for body in it.bodies()] == [1, 1, 2, 3]


async def test_what_waits_for_an_endpoint_is_bounded_and_the_rest_can_be_replayed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 3)
    monkeypatch.setattr(deliveries_module, "MAX_PENDING", 3)
    monkeypatch.setattr(deliveries_module, "REPLAY_BATCH", 2)
    async with stage(database_url) as here, receiver() as it:
        endpoint, one, other = await here.endpoint(it.url), await here.run(), await here.run()
        for run_id in (one, one, other, one, other):
            await here.event(run_id)
        rows = await here.deliveries()
        assert [row.state for row in rows] == ["pending", "pending", "pending", "failed", "failed"]
        assert "already wait for this endpoint" in (rows[-1].last_error or "")
        with pytest.raises(Conflict, match="already wait for this webhook"):
            await Deliveries(here.database).replay(endpoint.row.id, one, 0)
        here.dispatcher()
        await here.settled()
        assert len(it.received) == 3
        for run_id in (one, other):
            await Deliveries(here.database).replay(endpoint.row.id, run_id, 1)
            await here.settled()
        assert {(body["run_id"], body["seq"]) for body in it.bodies()} == {
            *((one, seq) for seq in (1, 2, 3)),
            *((other, seq) for seq in (1, 2)),
        }


async def test_the_bound_is_each_projects_own_where_they_share_an_endpoint(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 1)
    async with stage(database_url) as here:
        async with here.database.begin() as tx:
            here.endpoints._add(tx, "http://127.0.0.1:9/", (), None, None)  # type: ignore[arg-type]
        for project in ("noisy", "noisy", "quiet"):
            await here.event(await here.run(project))
        assert [(row.project, row.state) for row in await here.deliveries()] == [
            ("noisy", "pending"),
            ("noisy", "failed"),
            ("quiet", "pending"),
        ]
