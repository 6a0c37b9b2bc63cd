"""A live release divides the requests of its name: who meets which checkpoint, and what is recorded of it."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from learnloop_service.app.db.tables import (
    AgentSession,
    Promotion,
    Release,
    ReleaseObservation,
    ReleaseUnit,
    Trajectory,
)
from learnloop_service.app.domain.release_state import Arm, ReleaseState
from learnloop_service.app.releases.assignment import assignment
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.integration.app.release_traffic import (
    HASHER,
    QUESTION,
    SALT,
    STEPS,
    TALK,
    promoted,
    release_of,
    rows,
    stage,
    user_of,
)

__all__ = ["promoted", "stage"]


async def _ask(stage: ModelStage, **body: Any) -> httpx.Response:
    return await stage.service.client.post("/ask", json={"model": "mail/live", **QUESTION, **body})


@pytest.mark.parametrize("arm", list(Arm))
async def test_a_question_is_answered_by_the_users_arm_and_recorded_with_it(stage: ModelStage, arm: Arm) -> None:
    release_id = await release_of(stage)
    user = user_of(arm)
    for _ in range(2):
        answer = await _ask(stage, user=user)
        assert (answer.json()["step"], answer.json()["release_id"]) == (STEPS[arm], release_id), answer.text

    unit = HASHER.hash_of(user)
    [met] = await rows(stage, ReleaseUnit)
    assert (met.release_id, met.unit, met.arm, met.probability, met.closed_at) == (release_id, unit, arm, 0.5, None)
    [observation] = await rows(stage, ReleaseObservation)
    assert (observation.unit, observation.arm, observation.probability, observation.stage) == (unit, arm, 0.5, 2)
    assert set(observation.values) == {"error", "malformed", "slow", "cost", "asks_back"}
    assert (observation.values["error"], observation.values["slow"]) == (0.0, 0.0)
    assert 0 < observation.values["cost"] < 1
    for trajectory in await rows(stage, Trajectory):
        assert (trajectory.user_hash, trajectory.release_id, trajectory.arm, trajectory.probability) == (
            unit,
            release_id,
            arm,
            0.5,
        )
        assert trajectory.may_train is False


async def test_who_is_not_enrolled_or_names_no_user_has_the_stable_checkpoint(stage: ModelStage) -> None:
    await release_of(stage, share=0.05)
    passed_over = user_of(Arm.STABLE, share=0.05, is_enrolled=False)
    for more in ({"user": passed_over}, {}):
        answer = await _ask(stage, **more)
        assert answer.json()["step"] == STEPS[Arm.STABLE], answer.text
    assert await rows(stage, ReleaseUnit) == []
    [observation] = await rows(stage, ReleaseObservation)
    assert (observation.arm, observation.probability) == (Arm.STABLE, 0.05)


async def test_a_user_whom_a_stage_passed_over_is_counted_again_and_an_enrolled_one_is_not(stage: ModelStage) -> None:
    release_id = await release_of(stage, share=0.05)
    passed_over = user_of(Arm.STABLE, share=0.05, is_enrolled=False)
    enrolled = user_of(Arm.CANDIDATE, share=0.05)
    for user in (passed_over, enrolled):
        await _ask(stage, user=user)
    async with stage.service.database.begin() as tx:
        await tx.execute(update(Release).where(Release.id == release_id).values(stage=1, share=0.2))
    for user in (passed_over, enrolled):
        await _ask(stage, user=user)

    hash_of = HASHER.hash_of
    probabilities = {
        (observation.unit, observation.stage): observation.probability
        for observation in await rows(stage, ReleaseObservation)
    }
    assert probabilities == {
        (hash_of(passed_over), 0): 0.05,
        (hash_of(enrolled), 0): 0.05,
        (hash_of(passed_over), 1): pytest.approx(0.3 / 1.8),
    }


async def test_a_step_a_run_and_a_check_are_never_divided(stage: ModelStage) -> None:
    await release_of(stage)
    run_id = await stage.run_of()
    user = user_of(Arm.CANDIDATE)
    by_step = await _ask(stage, user=user, model="mail/caller@1")
    by_run = await stage.service.client.post("/ask", json={"run_id": run_id, "user": user, **QUESTION})
    checked = await stage.service.client.post("/promotions/mail/live/check")
    assert [by_step.json()["step"], by_run.json()["step"]] == [1, 1], by_run.text
    assert checked.json()["checkpoint"] == f"{CALLER}@1"
    assert await rows(stage, ReleaseUnit) == []


@pytest.mark.parametrize("state", [ReleaseState.TRIAL, ReleaseState.ROLLED_BACK, ReleaseState.PROMOTED])
async def test_a_release_that_is_not_live_divides_nothing(stage: ModelStage, state: ReleaseState) -> None:
    await release_of(stage, state=state)
    answer = await _ask(stage, user=user_of(Arm.CANDIDATE))
    assert (answer.json()["step"], answer.json()["release_id"]) == (1, None), answer.text


@pytest.mark.parametrize("way", ["user", "safety_identifier", "header"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_completion_is_the_arms_and_says_which_release(stage: ModelStage, way: str, stream: bool) -> None:
    release_id = await release_of(stage)
    user = user_of(Arm.CANDIDATE)
    headers, body = ({"Learnloop-User": user}, {}) if way == "header" else ({}, {way: user})
    request = {"model": "mail/live", **TALK, "stream": stream, **body}
    reply = await stage.service.client.post("/v1/chat/completions", json=request, headers=headers)
    assert (reply.status_code, reply.headers["Learnloop-Release"]) == (200, release_id), reply.text
    assert f"{CALLER}@0" in reply.text
    [met] = await rows(stage, ReleaseUnit)
    [observation] = await rows(stage, ReleaseObservation)
    assert (met.arm, observation.arm, observation.values["error"]) == (Arm.CANDIDATE, Arm.CANDIDATE, 0.0)


async def test_a_message_and_a_response_are_the_arms(stage: ModelStage) -> None:
    release_id = await release_of(stage)
    user = user_of(Arm.CANDIDATE)
    message = await stage.service.client.post(
        "/v1/messages", json={"model": "mail/live", **TALK, "metadata": {"user_id": user}}
    )
    response = await stage.service.client.post(
        "/v1/responses", json={"model": "mail/live", "input": "hello", "max_output_tokens": 2, "user": user}
    )
    for reply in (message, response):
        assert (reply.status_code, reply.headers["Learnloop-Release"]) == (200, release_id), reply.text
        assert reply.json()["model"] in (f"{CALLER}@0", "mail/live")
    assert [release_unit.arm for release_unit in await rows(stage, ReleaseUnit)] == [Arm.CANDIDATE]


async def test_a_checkpoint_that_is_gone_counts_against_its_arm(stage: ModelStage) -> None:
    await release_of(stage, step=7)
    user = user_of(Arm.CANDIDATE)
    answer = await _ask(stage, user=user)
    chat = await stage.service.client.post("/v1/chat/completions", json={"model": "mail/live", **TALK, "user": user})
    assert (answer.status_code, chat.status_code) == (404, 404), chat.text
    [observation] = await rows(stage, ReleaseObservation)
    assert (observation.arm, observation.values["error"]) == (Arm.CANDIDATE, 1.0)
    other = await _ask(stage, user=user_of(Arm.STABLE))
    assert other.json()["step"] == 1


@pytest.mark.parametrize("unit", ["user", "session"])
async def test_a_session_keeps_the_checkpoint_of_its_arm(stage: ModelStage, unit: str) -> None:
    release_id = await release_of(stage, unit=unit)
    client = stage.service.client
    user = user_of(Arm.CANDIDATE)
    opened = (await client.post("/sessions", json={"model": "mail/live", "user": user, "train": True})).json()
    [row] = await rows(stage, AgentSession)
    key = HASHER.hash_of(user) if unit == "user" else opened["id"]
    arm = assignment(SALT, key, 0.5).arm
    assert (row.release_id, row.arm, row.step, row.may_train) == (release_id, arm, STEPS[arm], True)
    [met] = await rows(stage, ReleaseUnit)
    assert (met.unit, met.arm) == (key, arm)

    async with stage.service.database.begin() as tx:
        await tx.execute(update(Release).values(state=ReleaseState.ROLLED_BACK))
    reply = await client.post(
        f"/sessions/{opened['id']}/v1/chat/completions",
        json={"model": "any", **TALK},
        headers=bearer(opened["api_key"]),
    )
    assert reply.json()["model"] == f"{CALLER}@{STEPS[arm]}", reply.text


async def test_the_first_answer_in_a_session_is_observed(stage: ModelStage) -> None:
    await release_of(stage)
    client = stage.service.client
    opened = (await client.post("/sessions", json={"model": "mail/live", "user": user_of(Arm.CANDIDATE)})).json()
    for content in ("hello", "again"):
        messages = [{"role": "user", "content": content}]
        reply = await client.post(
            f"/sessions/{opened['id']}/v1/chat/completions",
            json={"model": "any", **TALK, "messages": messages},
            headers=bearer(opened["api_key"]),
        )
        assert reply.status_code == 200, reply.text
    [observation] = await rows(stage, ReleaseObservation)
    assert (observation.arm, set(observation.values)) == (Arm.CANDIDATE, {"error", "malformed", "cost", "asks_back"})


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/ask", {**QUESTION, "user": ""}, "user"),
        ("/ask", {**QUESTION, "user": "u" * 257}, "user"),
        ("/v1/chat/completions", {**TALK, "user": 7}, "user"),
        ("/v1/messages", {**TALK, "metadata": {"user_id": "u" * 257}}, "user_id"),
    ],
)
async def test_a_user_that_is_no_short_text_is_refused(stage: ModelStage, path: str, body: Any, where: str) -> None:
    refused = await stage.service.client.post(path, json={"model": "mail/live", **body})
    assert refused.status_code in (400, 422), refused.text
    assert where in refused.text


async def test_the_users_key_is_in_no_row(stage: ModelStage) -> None:
    await release_of(stage)
    await _ask(stage, user="ada@example.com")
    await stage.service.client.post("/sessions", json={"model": "mail/live", "user": "ada@example.com"})
    for table in (Trajectory, AgentSession, ReleaseUnit, ReleaseObservation):
        for row in await rows(stage, table):
            assert "ada@example.com" not in repr(vars(row))


async def test_while_a_promotion_is_confirmed_only_its_open_units_keep_their_arm(stage: ModelStage) -> None:
    """Everybody else has the candidate, which the name means now."""
    release_id = await release_of(stage)
    early, late, new = (user_of(Arm.STABLE, number=number) for number in range(3))
    for user in (early, late):
        await _ask(stage, user=user)
    champion = await stage.service.client.post(f"/models/{CALLER}/promote", json={"step": 0, "as": "other"})
    assert champion.status_code == 201, champion.text
    async with stage.service.database.begin() as tx:
        promoted_to = (await tx.execute(select(func.max(Promotion.id)))).scalar_one()
        await tx.execute(update(Promotion).where(Promotion.id == promoted_to).values(name="live"))
        rules = {"ramp": [0.05, 0.2, 0.5], "window_hours": 24}
        ended = update(Release).where(Release.id == release_id)
        await tx.execute(ended.values(state="promoted", confirming_id=promoted_to, rules=rules))
        over = update(ReleaseUnit).where(ReleaseUnit.unit == HASHER.hash_of(early))
        await tx.execute(over.values(exposed_at=func.now() - timedelta(hours=49)))
    for more, step, met in ((early, 0, None), (late, 1, release_id), (new, 0, None), ("", 0, None)):
        answer = await _ask(stage, user=more) if more else await _ask(stage)
        assert (answer.json()["step"], answer.json()["release_id"]) == (step, met), (more, answer.text)
    opened = (await stage.service.client.post("/sessions", json={"model": "mail/live", "user": late})).json()
    [session] = await rows(stage, AgentSession)
    assert (session.id, session.step, session.release_id, session.arm) == (opened["id"], 1, release_id, Arm.STABLE)
    assert len(await rows(stage, ReleaseUnit)) == len(await rows(stage, ReleaseObservation)) == 2

    async with stage.service.database.begin() as tx:
        await tx.execute(update(Release).values(confirming_id=None))
    assert (await _ask(stage, user=late)).json()["step"] == 0
