"""What is expected of a release's users: known before they met an arm, fitted on windows that were closed by then."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Release, ReleaseUnit
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.expected import outcome_variance
from learnloop_service.app.releases.outcomes import close_windows
from learnloop_service.training.protocol.model_name import ModelName
from tests.integration.app.release_stage import running_release

RULE = {"session_reward": [0.0, 1.0]}
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
UNITS = ("easy", "hard", "new kind")


async def _session(database: Database, user: str, kind: str, *, days_ago: float, **more: Any) -> None:
    """A session of `mail/live` that ended after a minute, by default with the reward of its kind."""
    at = NOW - days_ago * DAY
    row: dict[Any, Any] = {
        "id": str(ULID.from_datetime(at)),
        "project": "mail",
        "asked_model": "mail/live",
        "model": "mail/agent@1",
        "backend": "embedded",
        "seed": 0,
        "explicit_restart": False,
        AgentSession.labels: {"kind": kind},
        "state": "ended",
        "outcome": {"reward": float(kind == "easy")},
        "expires_at": at + DAY,
        "opened_at": at,
        "ended_at": at + timedelta(minutes=1),
        "user_hash": user,
    }
    async with database.begin() as tx:
        await tx.execute(insert(AgentSession).values(row | more))


async def _history(database: Database, days_ago: float = 40) -> None:
    for number in range(40):
        await _session(database, f"earlier {number}", ("easy", "hard")[number % 2], days_ago=days_ago)


async def _release(database: Database, *, arm: Arm, reward: float) -> str:
    """A release of twenty days whose units were exposed by sessions of three kinds, ten days ago."""
    release_id = await running_release(database, outcome=RULE, window_hours=48)
    async with database.begin() as tx:
        await tx.execute(update(Release).values(started_at=NOW - 20 * DAY))
    for kind in UNITS:
        its = {"release_id": release_id, "arm": arm, "outcome": {"reward": reward}}
        await _session(database, kind, kind, days_ago=10, **its)
        unit = {"release_id": release_id, "unit": kind, "arm": arm, "probability": 0.5, "stage": 0}
        async with database.begin() as tx:
            await tx.execute(insert(ReleaseUnit).values(**unit, exposed_at=NOW - 10 * DAY))
    return release_id


async def _closed(database: Database, release_id: str) -> dict[str, tuple[float | None, float | None]]:
    """The outcome and the forecast of each unit."""
    async with database.begin() as tx:
        await close_windows(tx, await tx.get_one(Release, release_id))
        units = await tx.execute(select(ReleaseUnit).where(ReleaseUnit.release_id == release_id))
        return {unit.unit: (unit.outcome, unit.forecast) for unit in units.scalars()}


async def test_a_unit_has_the_forecast_of_its_kind(database: Database) -> None:
    await _history(database)
    closed = await _closed(database, await _release(database, arm=Arm.STABLE, reward=1.0))
    forecasts = {unit: forecast or 0.0 for unit, (_, forecast) in closed.items()}
    assert forecasts["easy"] > 0.6 > forecasts["new kind"] > 0.4 > forecasts["hard"]
    assert all(forecast == pytest.approx(round(20 * forecast) / 20) for forecast in forecasts.values())
    assert {outcome for outcome, _ in closed.values()} == {1.0}


async def test_neither_the_arm_nor_anything_later_changes_a_forecast(database: Database) -> None:
    await _history(database)
    one = await _closed(database, await _release(database, arm=Arm.STABLE, reward=1.0))
    async with database.begin() as tx:
        await tx.execute(update(Release).values(state="rolled_back"))
        await tx.execute(update(AgentSession).where(AgentSession.release_id.is_not(None)).values(release_id=None))
        await tx.execute(update(AgentSession).where(AgentSession.user_hash.in_(UNITS)).values(user_hash="another"))
    for number in range(40):  # opened before the units were exposed, but their windows closed after that
        await _session(database, f"open {number}", "hard", days_ago=11, outcome={"reward": 1.0})
    other = await _closed(database, await _release(database, arm=Arm.CANDIDATE, reward=0.0))
    assert {unit: forecast for unit, (_, forecast) in other.items()} == {
        unit: forecast for unit, (_, forecast) in one.items()
    }
    assert [outcome for outcome, _ in other.values()] == [0.0] * 3


async def test_without_closed_windows_there_is_no_forecast(database: Database) -> None:
    await _history(database, days_ago=90)
    closed = await _closed(database, await _release(database, arm=Arm.STABLE, reward=1.0))
    assert {forecast for _, forecast in closed.values()} == {None}


async def test_a_forecast_leaves_little_of_a_variance_that_it_explains(database: Database) -> None:
    async def variance() -> float | None:
        async with database() as tx:
            return await outcome_variance(tx, ModelName("mail", "live"), RULE, 2 * DAY)

    assert await variance() is None
    await _history(database)
    assert 0 < (await variance() or 0) < 0.15
    async with database.begin() as tx:
        await tx.execute(update(AgentSession).values({AgentSession.labels: {}}))
    assert (await variance() or 0) > 0.2
