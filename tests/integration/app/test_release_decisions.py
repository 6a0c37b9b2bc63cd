"""Outcomes promote a candidate or take it back, and users who had no part in that decision confirm it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion, Release, ReleaseUnit
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.look import look
from learnloop_service.app.releases.store import ReleaseStore
from learnloop_service.app.releases.watcher import ReleaseWatcher
from tests.integration.app.release_stage import enroll_all, promoted, running_release, say_of

CANDIDATE, STABLE = Arm.CANDIDATE, Arm.STABLE
RESOLVED = {"value": "resolved"}
HALF = 200


def _outcomes(good: int, units: int = HALF) -> list[float | None]:
    return [*[1.0] * good, *[0.0] * (units - good)]


async def _judged(database: Database, candidate: int, stable: int, waiting: int = 0, **rules: Any) -> str:
    """A release at half of the users whose arms had so many good outcomes of `HALF`, and so many open windows each."""
    release_id = await running_release(database, **{"ramp": (0.5,), "outcome": RESOLVED, "goal": "better", **rules})
    arms = {CANDIDATE: [None] * waiting + _outcomes(candidate), STABLE: [None] * waiting + _outcomes(stable)}
    await enroll_all(database, release_id, arms)
    return release_id


async def _release(database: Database, release_id: str) -> Release:
    async with database() as tx:
        return await tx.get_one(Release, release_id)


async def _champions(database: Database) -> list[int]:
    async with database() as tx:
        return list((await tx.execute(select(Promotion.step).order_by(Promotion.id))).scalars())


async def _age(database: Database, hours: float) -> None:
    """Let that much time pass for the units."""
    async with database.begin() as tx:
        await tx.execute(update(ReleaseUnit).values(exposed_at=ReleaseUnit.exposed_at - timedelta(hours=hours)))


async def test_a_candidate_that_is_better_for_users_is_promoted_and_its_evidence_can_be_verified(
    database: Database,
) -> None:
    id, store = await _judged(database, 150, 90), ReleaseStore(database)
    assert await look(database, id) == EventType.RELEASE_PROMOTED
    assert await _champions(database) == [1, 2]
    async with database() as tx:
        newest = (await tx.execute(select(Promotion).order_by(Promotion.id.desc()).limit(1))).scalar_one()
    assert newest.evidence is not None
    assert (newest.actor, newest.evidence["by"]) == ("system", "outcome")
    assert newest.evidence["quality"].startswith("Better for users: +30.0 points of `resolved` (95% interval +")

    [*_, event] = await store.events(id, after=0, limit=9)
    outcome = event.data["evidence"]["outcome"]
    assert (outcome["units"], outcome["effect"]) == (400, 0.3)
    assert 0 < outcome["low"] < 0.3 < outcome["high"]
    assert event.data["evidence"]["cells"]["reported"] == [
        [0.5, "stable", 0.0, 110],
        [0.5, "stable", 1.0, 90],
        [0.5, "candidate", 0.0, 50],
        [0.5, "candidate", 1.0, 150],
    ]
    verification = await store.verified(id)
    assert (verification.events, verification.differences) == (1, [])
    async with database.begin() as tx:
        one = select(ReleaseUnit.unit).where(ReleaseUnit.outcome == 0.0).limit(1).scalar_subquery()
        await tx.execute(update(ReleaseUnit).where(ReleaseUnit.unit == one).values(outcome=1.0))
    assert len((await store.verified(id)).differences) == 2


@pytest.mark.parametrize(
    ("rules", "arms", "reason"),
    [
        ({}, (60, 120), "harm"),
        ({"ramp": (0.2, 0.5)}, (60, 120), "harm"),
        ({"worth": 0.5}, (100, 100), "no_gain"),
        ({"goal": "not_worse", "margin": 0.1}, (40, 130), "harm"),
    ],
)
async def test_outcomes_take_a_candidate_back(
    database: Database, rules: dict[str, Any], arms: tuple[int, int], reason: str
) -> None:
    id = await _judged(database, *arms, **rules)
    assert await look(database, id) == EventType.RELEASE_ROLLED_BACK
    release = await _release(database, id)
    assert (release.state, release.reason, release.confirming_id) == ("rolled_back", reason, None)
    assert await _champions(database) == [1]
    assert (await ReleaseStore(database).verified(id)).differences == []


async def test_a_candidate_that_is_not_worse_by_the_margin_is_promoted(database: Database) -> None:
    id = await _judged(database, 100, 100, goal="not_worse", margin=0.25)
    assert await look(database, id) == EventType.RELEASE_PROMOTED


@pytest.mark.parametrize("arms", [(150, 90), (60, 120)])
async def test_a_release_whose_goal_is_guardrails_shows_outcomes_and_decides_nothing(
    database: Database, arms: tuple[int, int]
) -> None:
    """So does one that was stored before outcomes decided anything."""
    id = await _judged(database, *arms)
    async with database.begin() as tx:
        release = await tx.get_one(Release, id)
        release.rules = {name: rule for name, rule in release.rules.items() if name not in ("goal", "margin", "worth")}
    assert await look(database, id) is None
    release = await _release(database, id)
    assert release.state == "running"
    assert release.evidence is not None
    assert release.evidence["outcome"]["units"] == 400


async def test_an_outcome_is_counted_by_one_look_only(database: Database) -> None:
    id = await _judged(database, 12, 10)
    await look(database, id)
    await look(database, id)
    first = await _release(database, id)
    assert first.looks == 1
    async with database.begin() as tx:
        closed = update(ReleaseUnit).where(ReleaseUnit.look.is_(None))
        assert (await tx.execute(closed.values(look=9).returning(ReleaseUnit.unit))).all() == []
    assert (await ReleaseStore(database).verified(id)).differences == []


async def _confirming(database: Database, waiting: int = 60) -> str:
    """A candidate that was promoted by its outcomes while each arm had so many open windows."""
    id = await _judged(database, 150, 90, waiting)
    assert await look(database, id) == EventType.RELEASE_PROMOTED
    return id


async def _windows(database: Database, id: str, first: Sequence[int], second: Sequence[int]) -> None:
    """Let both windows of the units pass, in which each arm, the candidate first, had so many good outcomes."""
    for arm, good, again in zip((CANDIDATE, STABLE), first, second, strict=True):
        await say_of(database, arm, _outcomes(good, 60), hours_ago=300)
        await say_of(database, arm, _outcomes(again, 60), hours_ago=100)
    await _age(database, 337)
    assert (await _release(database, id)).confirming_id is not None


async def test_users_whose_windows_were_open_confirm_a_promotion(database: Database) -> None:
    id, store = await _confirming(database), ReleaseStore(database)
    assert await look(database, id) is None, "their windows are open"
    await say_of(database, CANDIDATE, _outcomes(40, 60), hours_ago=100)
    await say_of(database, STABLE, _outcomes(31, 60), hours_ago=100)
    await _age(database, 169)
    assert await look(database, id) is None, "their second windows are open"
    whole = await store.whole(id)
    assert [effect.units for effect in whole.confirmation] == [120, 0]
    assert whole.confirmation[0].effect == pytest.approx(0.15)

    await _age(database, 169)
    assert await look(database, id) == EventType.RELEASE_CONFIRMED
    release = await _release(database, id)
    assert (release.state, release.reason, release.confirming_id) == ("confirmed", None, None)
    assert await _champions(database) == [1, 2]
    [*_, event] = await store.events(id, after=0, limit=9)
    first, second = event.data["evidence"]["confirmation"]
    assert first["effect"] == pytest.approx(0.15)
    assert (second["units"], second["effect"]) == (120, pytest.approx(0.15))
    assert (await store.verified(id)).differences == []
    async with database.begin() as tx:
        one = select(ReleaseUnit.unit).where(ReleaseUnit.second_outcome == 0.0).limit(1).scalar_subquery()
        await tx.execute(update(ReleaseUnit).where(ReleaseUnit.unit == one).values(second_outcome=1.0))
    assert (await store.verified(id)).differences == ["The confirmation does not follow from the units."]


async def test_an_effect_that_turns_into_harm_after_the_first_window_is_taken_back(database: Database) -> None:
    id = await _confirming(database)
    await _windows(database, id, first=(45, 30), second=(20, 45))
    assert await look(database, id) == EventType.RELEASE_ROLLED_BACK
    release = await _release(database, id)
    assert (release.state, release.reason, release.confirming_id) == ("rolled_back", "novelty", None)
    assert await _champions(database) == [1, 2, 1]
    [*_, event] = await ReleaseStore(database).events(id, after=0, limit=9)
    assert [round(effect["effect"], 2) for effect in event.data["evidence"]["confirmation"]] == [0.25, -0.42]
    assert await look(database, id) is None
    assert (await ReleaseStore(database).verified(id)).differences == []


async def test_an_effect_that_is_only_gone_is_confirmed(database: Database) -> None:
    id = await _confirming(database)
    await _windows(database, id, first=(45, 30), second=(30, 31))
    assert await look(database, id) == EventType.RELEASE_CONFIRMED


async def test_too_few_users_confirm_nothing(database: Database) -> None:
    id = await _confirming(database, waiting=14)
    await _age(database, 337)
    assert await look(database, id) is None
    release = await _release(database, id)
    assert (release.state, release.confirming_id) == ("promoted", None)


async def test_a_confirmation_ends_when_the_name_is_given_to_another_checkpoint(database: Database) -> None:
    id = await _confirming(database)
    await promoted(database, 7)
    await _windows(database, id, first=(45, 30), second=(20, 45))
    async with database.begin() as tx:
        await tx.execute(update(Release).values(looked_at=func.now() - timedelta(minutes=2)))
    await ReleaseWatcher(database).look_at_due()
    release = await _release(database, id)
    assert (release.state, release.confirming_id) == ("promoted", None)
    assert await _champions(database) == [1, 2, 7]


async def test_a_session_confirms_by_its_first_window_alone(database: Database) -> None:
    id = await _confirming(database)
    async with database.begin() as tx:
        await tx.execute(update(Release).values(unit="session"))
    await _age(database, 169)
    assert await look(database, id) == EventType.RELEASE_CONFIRMED
    [*_, event] = await ReleaseStore(database).events(id, after=0, limit=9)
    assert [effect["units"] for effect in event.data["evidence"]["confirmation"]] == [120, 0]
