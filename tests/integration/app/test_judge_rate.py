"""The limits of a judge model hold over all who ask it."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.worker.judge_services import StoredRate
from tests.fakes.scripted_judge import Pauses


async def test_all_workers_share_the_limits_of_a_model(database_url: str) -> None:
    engine = make_engine(parse_url(database_url))
    database, home, waits = make_database(engine), asyncio.get_running_loop(), Pauses()

    def worker(**limits: Any) -> StoredRate:
        return StoredRate(
            database, home, **{"requests_per_minute": None, "tokens_per_minute": None, **limits}, sleep=waits
        )

    async def ahead(model: str) -> tuple[float, float]:
        """Seconds from `begun` to the time of the next request, by the number of requests and of tokens."""
        async with database() as tx:
            row = (
                await tx.execute(text("SELECT requests_at, tokens_at FROM judge_rate WHERE model = :m"), {"m": model})
            ).one()
        return (row.requests_at - begun).total_seconds(), (row.tokens_at - begun).total_seconds()

    async with database() as tx:
        begun: datetime = (await tx.execute(text("SELECT clock_timestamp()"))).scalar_one()
    by_requests = [worker(requests_per_minute=0.6) for _ in range(2)]
    await asyncio.gather(*(by_requests[number % 2].turn("a", 10) for number in range(6)))
    assert (await ahead("a"))[0] >= 600
    # The first one goes at once; of the others each waits 100 s longer than the one before.
    assert len(waits.seconds) == 5
    assert max(waits.seconds) > 400

    by_tokens = worker(tokens_per_minute=60)
    await by_tokens.turn("b", 1_000)
    before = (await ahead("b"))[1]
    assert before >= 1_000
    await by_tokens.used("b", -600)
    assert (await ahead("b"))[1] == pytest.approx(before - 600)
    waits.seconds.clear()
    await by_tokens.turn("b", 50)
    assert 100 < waits.seconds[0] <= 400
    await by_requests[0].used("a", 10**6)
    assert (await ahead("a"))[0] >= 600
    await engine.dispose()


async def test_without_the_database_nothing_is_limited(database_url: str) -> None:
    engine = make_engine(parse_url(database_url).set(database="nowhere"))
    waits = Pauses()
    rate = StoredRate(
        make_database(engine), asyncio.get_running_loop(), requests_per_minute=1, tokens_per_minute=1, sleep=waits
    )
    await rate.turn("a", 1_000)
    await rate.used("a", 1_000)
    assert waits.seconds == []
    await engine.dispose()
