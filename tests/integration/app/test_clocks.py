"""What is stored and signed is dated by the database's clock, whatever our own says."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from learnloop_service.app.db.clock import DatabaseTime
from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.webhooks.sender import Receiver, Sender
from learnloop_service.environment.email_search.synthetic import address_of
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.keyed import keyed
from tests.integration.app.served import ended, start
from tests.integration.app.talking_runs import RUN, service
from tests.integration.app.webhook_stage import BOX, HERE

JUMP_S = 3 * 86_400.0


@pytest.fixture
def jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our wall clock is three days ahead of the database's."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + JUMP_S)


async def test_rollouts_are_dated_by_the_database(data_dir: Path, database_url: str, jumped: None) -> None:
    engine = make_engine(parse_url(database_url))
    async with service(data_dir, database_url) as (client, _):
        run = await ended(client, await start(client, RUN | {"iterations": 1}))
        assert run["status"] == "completed"
        question = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 17)}
        answer = await client.post("/ask", json={"run_id": run["run_id"]} | question)
        assert answer.status_code == 200, answer.text
        query = select(func.min(Trajectory.started_at), func.max(Trajectory.started_at), func.clock_timestamp())
        async with engine.connect() as connection:
            first, last, now = (await connection.execute(query)).one()
    await engine.dispose()
    assert now - timedelta(hours=1) < first <= last <= now


async def test_a_message_is_signed_as_of_the_moment_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was claimed ten minutes before: whoever sends it was frozen meanwhile."""
    claimed = DatabaseTime(datetime(2026, 3, 14, 9, 30, tzinfo=UTC))
    real = time.monotonic
    monkeypatch.setattr("learnloop_service.app.db.clock.time.monotonic", lambda: real() + 600)
    sender = Sender(BOX, HERE)
    async with receiver() as it:
        result = await sender.send(Receiver(None, it.url), "id", claimed, "{}")
    await sender.close()
    assert result.error is None
    [(_, headers, _)] = it.received
    sent_at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    assert sent_at - claimed.read_at >= timedelta(minutes=10)


async def test_a_key_lives_by_the_databases_clock(data_dir: Path, database_url: str, jumped: None) -> None:
    async with keyed(data_dir, database_url) as here:
        new = await here.new(expires_days=1)
        reply = await here.client.get("/runs", headers={"authorization": f"Bearer {new.key}"})
        assert reply.status_code == 200
        async with here.database() as tx:
            now = (await tx.execute(select(func.now()))).scalar_one()
        assert new.row.expires_at is not None
        assert timedelta(hours=23) < new.row.expires_at - now <= timedelta(days=1)
