"""A look at a release is one transaction: it counts what is new, decides, and writes the decision with its event."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import (
    Promotion,
    Release,
    ReleaseEvent,
    ReleaseObservation,
    ReleaseUnit,
    WebhookDelivery,
    WebhookEndpoint,
)
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_rules import Guardrail
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.errors import DATABASE_DOWN, NotAllowed
from learnloop_service.app.instruments import REGISTRY
from learnloop_service.app.releases import counts, look, moves
from learnloop_service.app.releases.store import ReleaseStore
from learnloop_service.app.releases.watcher import ReleaseWatcher
from tests.conditions import PATIENCE_S
from tests.integration.app.release_stage import (
    FAILED,
    GOOD,
    MALFORMED,
    enroll,
    hashed,
    observe,
    promoted,
    running_release,
)

CANDIDATE, STABLE = Arm.CANDIDATE, Arm.STABLE


async def _release(database: Database, release_id: str) -> Release:
    async with database() as tx:
        return await tx.get_one(Release, release_id)


async def _events(database: Database, release_id: str) -> Sequence[ReleaseEvent]:
    return await ReleaseStore(database).events(release_id, after=0, limit=100)


async def _types(database: Database, release_id: str) -> list[str]:
    return [event.type.removeprefix("release.") for event in await _events(database, release_id)]


async def _champions(database: Database) -> list[int]:
    async with database() as tx:
        return list((await tx.execute(select(Promotion.step).order_by(Promotion.id))).scalars())


async def _age(database: Database, release_id: str, days: float) -> None:
    async with database.begin() as tx:
        began = update(Release).where(Release.id == release_id)
        await tx.execute(began.values(started_at=func.now() - timedelta(days=days)))


async def test_a_good_candidate_climbs_the_ramp_and_its_evidence_can_be_verified(database: Database) -> None:
    id, store = await running_release(database), ReleaseStore(database)
    for share, arms in ((0.2, (400, 7_600)), (0.5, (1_600, 6_400))):
        # Both arms in the proportion of the coin, on which the test rests.
        await observe(database, id, CANDIDATE, GOOD, 29)
        await observe(database, id, STABLE, GOOD, 29 * arms[1] // arms[0])
        assert await look.look(database, id) is None
        await observe(database, id, STABLE, GOOD, arms[1] - 29 * arms[1] // arms[0])
        await observe(database, id, CANDIDATE, GOOD, arms[0] - 30)
        await observe(database, id, CANDIDATE, MALFORMED)
        assert await look.look(database, id) == EventType.RELEASE_STAGE_CHANGED
        assert (await _release(database, id)).share == share
        assert await look.look(database, id) is None
    *_, changed = await _events(database, id)
    evidence = changed.data["evidence"]
    assert changed.data["before"] == {"stage": 1, "share": 0.2}
    assert evidence["met"] == 1_600
    assert evidence["guardrails"]["malformed"]["candidate"] == {"units": 2_000, "mean": 0.001}
    assert (
        evidence["guardrails"]["malformed"]["ruled_out"] >= evidence["guardrails"]["malformed"]["ruled_out_threshold"]
    )
    assert evidence["cells"]["error"] == [
        [0.05, "stable", 0.0, 7_600],
        [0.05, "candidate", 0.0, 400],
        [0.2, "stable", 0.0, 6_400],
        [0.2, "candidate", 0.0, 1_600],
    ]
    verification = await store.verified(id)
    assert (verification.observations, verification.events, verification.differences) == (16_000, 2, [])

    # Whoever changes a row that was counted is found out.
    async with database.begin() as tx:
        one = select(ReleaseObservation.unit).where(ReleaseObservation.arm == CANDIDATE).limit(1).scalar_subquery()
        await tx.execute(update(ReleaseObservation).where(ReleaseObservation.unit == one).values(values=FAILED))
    assert any("not those of the observations" in difference for difference in (await store.verified(id)).differences)


async def test_a_bad_candidate_is_taken_back(database: Database) -> None:
    id = await running_release(database)
    await observe(database, id, STABLE, GOOD, 950)
    await observe(database, id, CANDIDATE, MALFORMED, 20)
    await observe(database, id, CANDIDATE, GOOD, 30)  # the newest units are fine: this is not the breaker's
    assert await look.look(database, id) == EventType.RELEASE_ROLLED_BACK
    release = await _release(database, id)
    assert (release.state, release.reason, release.ended_at is not None) == ("rolled_back", "guardrail", True)
    [_, event] = await _events(database, id)
    malformed = event.data["evidence"]["guardrails"]["malformed"]
    assert malformed["harm"] >= malformed["harm_threshold"]
    assert await look.look(database, id) is None  # it has ended
    assert await _champions(database) == [1]


async def test_the_breaker_tells_a_broken_candidate_from_an_absent_backend(database: Database) -> None:
    id = await running_release(database, ramp=(0.5,))  # where three failures are nothing to a guardrail
    await observe(database, id, STABLE, GOOD)
    await observe(database, id, CANDIDATE, FAILED, 3)
    assert await look.look(database, id) is None  # what stable did before says nothing about now
    await observe(database, id, STABLE, FAILED, 3)
    assert await look.look(database, id) == EventType.RELEASE_HELD
    assert (await _release(database, id)).reason == "backend_away"

    await ReleaseStore(database).act(id, "resume", "local")
    assert await look.look(database, id) is None  # the failures before are forgotten
    await observe(database, id, STABLE, GOOD, 60)
    await observe(database, id, CANDIDATE, GOOD, 60)
    await observe(database, id, CANDIDATE, MALFORMED, 5)
    assert await look.look(database, id) is None
    await observe(database, id, STABLE, GOOD)
    assert await look.look(database, id) == EventType.RELEASE_ROLLED_BACK
    assert (await _release(database, id)).reason == "breaker"
    assert await _types(database, id) == ["started", "held", "resumed", "rolled_back"]


@pytest.mark.parametrize(
    ("at_end", "state", "reason", "champions"),
    [("return", "rolled_back", "time", [1]), ("promote", "promoted", None, [1, 2])],
)
async def test_its_time_is_up(
    database: Database, at_end: str, state: str, reason: str | None, champions: list[int]
) -> None:
    id = await running_release(database, at_end=at_end)
    await _age(database, id, 59.9)
    assert await look.look(database, id) is None
    await _age(database, id, 60)
    await look.look(database, id)
    release = await _release(database, id)
    assert (release.state, release.reason) == (state, reason)
    assert await _champions(database) == champions
    if state == "promoted":
        async with database() as tx:
            newest = (await tx.execute(select(Promotion).order_by(Promotion.id.desc()).limit(1))).scalar_one()
        assert (newest.actor, newest.evidence) == (
            "system",
            {"release_id": id, "by": "time", "quality": moves.NOTHING_SHOWN},
        )


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_a_name_that_was_given_away_meanwhile_is_left_alone(database: Database, withdrawn: bool) -> None:
    id = await running_release(database, at_end="promote")
    await _age(database, id, 61)
    if withdrawn:
        async with database.begin() as tx:
            await tx.execute(update(Promotion).values(withdrawn_at=func.now()))
    else:
        await promoted(database, 7)
    assert await look.look(database, id) == EventType.RELEASE_ENDED
    assert (await _release(database, id)).state == "overtaken"
    assert await _champions(database) == ([1] if withdrawn else [1, 7])
    with pytest.raises(NotAllowed):
        await ReleaseStore(database).act(id, "promote", "local")


async def test_windows_that_are_open_at_the_end_are_closed_when_they_are_over(database: Database) -> None:
    id = await running_release(database)
    await enroll(database, id, CANDIDATE, [None, None])
    await ReleaseStore(database).act(id, "rollback", "local")
    over, open_ = hashed(f"{CANDIDATE} 0"), hashed(f"{CANDIDATE} 1")
    watcher, before = ReleaseWatcher(database), _reported("no")

    async def looked_at_after_a_while() -> dict[str, float | None]:
        async with database.begin() as tx:
            await tx.execute(update(Release).values(looked_at=func.now() - timedelta(minutes=2)))
        await watcher.look_at_due()
        async with database() as tx:
            return {row.unit: row.outcome for row in await tx.execute(select(ReleaseUnit.unit, ReleaseUnit.outcome))}

    async with database.begin() as tx:
        old = update(ReleaseUnit).values(exposed_at=func.now() - timedelta(days=8))
        await tx.execute(old.where(ReleaseUnit.unit == over))
    assert await looked_at_after_a_while() == {over: 0.5, open_: None}
    assert _reported("no") == before + 1
    async with database.begin() as tx:
        await tx.execute(old)
    assert await looked_at_after_a_while() == {over: 0.5, open_: 0.5}

    await looked_at_after_a_while()
    looked_at = (await _release(database, id)).looked_at
    assert looked_at is not None
    async with database() as tx:  # nothing is left to close, so it was not looked at again
        now = (await tx.execute(select(func.now()))).scalar_one()
    assert looked_at < now - timedelta(minutes=1)
    assert await _types(database, id) == ["started", "rolled_back"]


def _reported(answer: str) -> float:
    """How many windows of candidates were closed with, or without, anything reported in time."""
    labels = {"arm": CANDIDATE, "reported": answer}
    return REGISTRY.get_sample_value("learnloop_release_outcomes_total", labels) or 0.0


async def test_of_many_processes_one_decides(database: Database) -> None:
    id = await running_release(database, at_end="promote")
    await observe(database, id, STABLE, GOOD, 7_600)
    await observe(database, id, CANDIDATE, GOOD, 400)
    await asyncio.gather(*(look.look(database, id) for _ in range(6)))
    assert await _types(database, id) == ["started", "stage_changed"]
    await _age(database, id, 61)
    outcomes = await asyncio.gather(*(look.look(database, id) for _ in range(6)))
    assert [outcome for outcome in outcomes if outcome] == [EventType.RELEASE_PROMOTED]
    assert await _champions(database) == [1, 2]
    assert (await _release(database, id)).version == 4


@pytest.mark.parametrize("table", ["promotion", "release_event", "webhook_delivery"])
async def test_a_decision_is_told_or_was_not_made(database: Database, table: str) -> None:
    """The database ends the connection at the moment of a write, as it ends when the process is killed there."""
    id = await running_release(database, at_end="promote")
    async with database.begin() as tx:
        tx.add(WebhookEndpoint(id="0" * 26, project="mail", url="http://a.example/", events=[]))
    await observe(database, id, CANDIDATE, GOOD, 2)
    await _age(database, id, 61)
    await _dies_at(database, table)
    with pytest.raises(DATABASE_DOWN):
        await look.look(database, id)
    async with database.begin() as tx:
        await tx.execute(text("DROP FUNCTION dies CASCADE"))
        uncounted = select(func.count()).where(ReleaseObservation.look.is_(None))
        assert (await tx.execute(uncounted)).scalar_one() == 2
    assert (await _types(database, id), await _champions(database)) == (["started"], [1])
    assert (await _release(database, id)).state == "running"

    assert await look.look(database, id) == EventType.RELEASE_PROMOTED
    async with database() as tx:
        [delivery] = (await tx.execute(select(WebhookDelivery))).scalars().all()
    assert (delivery.release_id, delivery.event_type, delivery.event_seq) == (id, "release.promoted", 2)
    assert '"evidence"' in delivery.body
    assert (await _types(database, id), await _champions(database)) == (["started", "promoted"], [1, 2])


async def _dies_at(database: Database, table: str) -> None:
    body = "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
    async with database.begin() as tx:
        await tx.execute(text(f"CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS {body}"))
        await tx.execute(text(f"CREATE TRIGGER dies AFTER INSERT ON {table} EXECUTE FUNCTION dies()"))


async def test_a_frozen_process_does_not_keep_the_release(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    id = await running_release(database)
    await observe(database, id, CANDIDATE, GOOD, 3)
    began, frozen = asyncio.Event(), asyncio.Event()
    count_new = counts.count_new

    async def freezes(*arguments: Any) -> Any:
        counted = await count_new(*arguments)
        began.set()
        await frozen.wait()
        return counted

    monkeypatch.setattr(look, "_FROZEN_S", 0.5)
    monkeypatch.setattr(counts, "count_new", freezes)
    first = asyncio.create_task(look.look(database, id))
    await began.wait()
    monkeypatch.setattr(counts, "count_new", count_new)
    assert await look.look(database, id) is None  # passes by
    await observe(database, id, CANDIDATE, GOOD)  # what users meet is recorded all the same
    async with asyncio.timeout(PATIENCE_S):
        while (await _release(database, id)).looks == 0:  # until Postgres has ended the frozen one's connection
            await look.look(database, id)
    frozen.set()
    with pytest.raises(DATABASE_DOWN):
        await first
    assert (await _release(database, id)).looks == 1
    assert (await ReleaseStore(database).verified(id)).observations == 4


async def test_the_same_users_give_the_same_evidence_in_any_order_and_portions(database: Database) -> None:
    chance, collected = Random(7), []
    users = [(arm, {"cost": value}) for arm in (CANDIDATE, STABLE) for value in (0.1, 0.4, 0.123456)] * 4
    for portions in (1, 3, 24):
        id = await running_release(database, f"n{portions}", ramp=(0.5,))
        chance.shuffle(users)
        for start in range(0, 24, 24 // portions):
            for arm, values in users[start : start + 24 // portions]:
                await observe(database, id, arm, values)
            await look.look(database, id)
        evidence = (await _release(database, id)).evidence
        assert evidence is not None
        assert evidence.pop("look") == portions
        collected.append(evidence)
    assert collected[0] == collected[1] == collected[2]


async def test_a_value_that_is_known_an_hour_later_is_counted_once(database: Database) -> None:
    id = await running_release(database, guardrails={Guardrail.THUMBS_DOWN_1H: 0.05, Guardrail.ERROR: 0.02})
    await observe(database, id, CANDIDATE, {"error": 0.0}, 2)
    await look.look(database, id)
    async with database.begin() as tx:
        one = update(ReleaseObservation).where(ReleaseObservation.unit == hashed("user 0"))
        await tx.execute(one.values(values={"error": 0.0, "thumbs_down_1h": 1.0}))
    await ReleaseWatcher(database).look_at_due()
    await look.look(database, id)
    release = await _release(database, id)
    assert release.evidence is not None
    assert release.evidence["cells"] == {
        "error": [[0.05, "candidate", 0.0, 2]],
        "thumbs_down_1h": [[0.05, "candidate", 1.0, 1]],
    }
    assert (release.looks, (await ReleaseStore(database).verified(id)).differences) == (2, [])


async def test_the_watcher_looks_when_something_is_new_and_now_and_then(database: Database) -> None:
    id, watcher = await running_release(database), ReleaseWatcher(database)

    async def looked() -> bool:
        before = (await _release(database, id)).looked_at
        await watcher.look_at_due()
        return (await _release(database, id)).looked_at != before

    assert await looked()
    assert not await looked()
    await observe(database, id, STABLE, GOOD)
    assert await looked()
    assert not await looked()
    async with database.begin() as tx:
        await tx.execute(update(Release).values(looked_at=func.now() - timedelta(seconds=61)))
    assert await looked()


async def test_arms_are_shown_with_their_windows(database: Database) -> None:
    id = await running_release(database)
    await enroll(database, id, CANDIDATE, [1.0, 0.5, None])
    await enroll(database, id, STABLE, [None])
    arms = (await ReleaseStore(database).whole(id)).arms
    assert (arms[CANDIDATE].units, arms[CANDIDATE].open_windows, arms[CANDIDATE].mean_outcome) == (3, 1, 0.75)
    assert (arms[STABLE].units, arms[STABLE].open_windows, arms[STABLE].mean_outcome) == (1, 1, None)
