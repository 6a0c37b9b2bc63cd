"""The frontend hears of every iteration."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import insert, select
from ulid import ULID

from app.db.database import Database
from app.db.tables import Run, WebhookDelivery
from app.security.address_guard import AddressGuard
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.sender import Sender
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.webhook_stage import BOX


async def test_each_iteration_is_told_once_and_in_order(data_dir: Path, database_url: str) -> None:
    async with receiver() as frontend:
        settings = settings_for(data_dir, database_url, frontend_url=frontend.url)
        async with served(settings, ScriptedLoop()) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 3})).json()["run_id"]
            await run_with(client, run_id, "completed")

            async def ask() -> object:
                return (await client.get(f"/runs/{run_id}")).json()["webhooks"]

            await answered(ask, lambda counts: counts == {"delivered": 4})
        bodies = list(frontend.bodies())
        assert [body["iteration"] for body in bodies] == [0, 1, 2, 3]
        last = bodies[3]
        assert last.keys() == {
            "type",
            "timestamp",
            "run_id",
            "seq",
            "version",
            "iteration",
            "status",
            "rewards",
            "success",
            "step",
        }
        assert (last["run_id"], last["status"], last["step"]) == (run_id, "running", 3)
        assert len({headers["webhook-id"] for _, headers, _ in frontend.received}) == 4


@asynccontextmanager
async def _dispatching(database: Database, **urls: str) -> AsyncIterator[None]:
    """A dispatcher with quick retries over one pending delivery for each url."""
    run_id = str(ULID())
    async with database.begin() as tx:
        tx.add(
            Run(
                id=run_id,
                request={},
                environment="e",
                judge="j",
                backend="b",
                model_project="p",
                model_name="m",
                base_model="t",
                iterations_total=1,
            )
        )
        await tx.flush()
        rows = [
            {"id": str(ULID()), "run_id": run_id, "iteration": n, "url": url, "body": f'{{"name": "{name}"}}'}
            | {"project": "p", "receiver": url, "is_next": url not in [*urls.values()][:n]}
            for n, (name, url) in enumerate(urls.items())
        ]
        await tx.execute(insert(WebhookDelivery), rows)
    dispatcher = Dispatcher(database, Sender(BOX, AddressGuard()), retry_delays_s=(0.0, 0.0))
    dispatcher.start()
    yield
    await dispatcher.close()


async def _settled(database: Database) -> dict[int | None, tuple[str, int, str | None]]:
    async def ask() -> dict[int | None, tuple[str, int, str | None]]:
        async with database() as tx:
            rows = (await tx.execute(select(WebhookDelivery))).scalars()
            return {row.iteration: (row.state, row.attempts, row.last_error) for row in rows}

    return await answered(ask, lambda found: all(state != "pending" for state, _, _ in found.values()))  # type: ignore[no-any-return]


async def test_a_failed_delivery_is_sent_again_the_same_before_later_ones(database: Database) -> None:
    async with (
        receiver("500 Oops", "503 Busy") as frontend,
        _dispatching(database, a=frontend.url, b=frontend.url),
    ):
        assert await _settled(database) == {0: ("delivered", 3, None), 1: ("delivered", 1, None)}
        assert [body["name"] for body in frontend.bodies()] == ["a", "a", "a", "b"]
        assert len({headers["webhook-id"] for _, headers, _ in frontend.received[:3]}) == 1


async def test_a_redirect_is_a_failure_and_not_followed(database: Database) -> None:
    async with receiver() as elsewhere:
        moved = f"307 Moved\r\nLocation: {elsewhere.url}"
        async with receiver(moved, moved, moved) as frontend, _dispatching(database, a=frontend.url):
            assert await _settled(database) == {0: ("failed", 3, "the receiver answered 307")}
        assert elsewhere.received == []


async def test_a_receiver_that_is_not_there_is_given_up_and_the_next_one_served(database: Database) -> None:
    closed = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    nobody = f"http://127.0.0.1:{closed.sockets[0].getsockname()[1]}/"
    closed.close()
    await closed.wait_closed()
    async with receiver() as frontend, _dispatching(database, a=nobody, b=frontend.url):
        found = await _settled(database)
    assert found[0][:2] == ("failed", 3)
    assert (found[0][2] or "").startswith("ConnectError")
    assert found[1] == ("delivered", 1, None)
