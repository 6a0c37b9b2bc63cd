"""Releases over HTTP: how one is started, shown, and ended by a person."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, insert, update
from typer.testing import CliRunner
from ulid import ULID

from learnloop_service.app.cli.main import app as cli
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Release
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.app.release_stage import GOOD, MALFORMED, enroll_all, hashed, observe_all
from tests.integration.app.released_models import (
    RELEASES,
    release_events,
    release_service,
    scripted_engine,
    started_release,
)


async def _in_state(client: httpx.AsyncClient, release_id: str, *states: str) -> Json:
    async def ask() -> Json:
        return (await client.get(f"/releases/{release_id}")).raise_for_status().json()

    return await answered(ask, lambda release: release["state"] in states)


async def test_a_person_starts_holds_resumes_and_promotes(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        started = await started_release(client, guardrails={"malformed": 0.03, "error": None})
        id = started["release_id"]
        assert (started["state"], started["share"], started["stages"]) == ("running", 0.05, 3)
        assert (started["candidate"], started["stable"]) == ("learnloop/m@2", "learnloop/m@0")
        assert [warning for warning in started["warnings"] if "slow" in warning]
        assert "nothing can be forecast" in started["forecast"]["note"]

        release = (await client.get(f"/releases/{id}")).json()
        assert release["rules"]["guardrails"] == {"malformed": 0.03, "thumbs_down_1h": 0.05, "asks_back": 0.05}
        assert release["salt"] is None
        assert release["next"] == (
            "The share becomes 20% when 30 more users have met the candidate and an increase of questions asked back, "
            "malformed replies and thumbs down within an hour above 10 points is ruled out."
        )
        [listed] = (await client.get("/promotions")).json()["items"]
        assert listed["release"]["release_id"] == id
        [same] = (await client.get(RELEASES)).json()["items"]
        assert same == listed["release"] == (await client.get("/releases")).json()["items"][0]

        second = await client.post(RELEASES, json={"step": 1, "skip_trial": True})
        assert (second.status_code, second.json()["release_id"]) == (409, id)

        on_hold = (await client.post(f"/releases/{id}/hold")).json()
        assert (on_hold["state"], on_hold["reason"], on_hold["version"]) == ("held", "person", 3)
        refused = await client.post(f"/releases/{id}/hold")
        assert (refused.status_code, refused.json()["allowed"]) == (409, ["resume", "rollback", "promote"])
        resumed = (await client.post(f"/releases/{id}/resume")).json()
        assert (resumed["state"], resumed["reason"]) == ("running", None)

        promoted = (await client.post(f"/releases/{id}/promote")).json()
        assert (promoted["state"], promoted["share"], promoted["next"]) == ("promoted", 0.0, None)
        assert "Nothing is shown" in promoted["quality"]
        assert promoted["confirmation"] == []
        assert len(promoted["salt"]) == 32
        [now, before] = (await client.get("/promotions/learnloop/live")).json()["items"]
        assert (now["step"], before["step"], now["release"]) == (2, 0, None)
        assert (now["evidence"]["release_id"], now["evidence"]["by"]) == (id, "person")

        events = await release_events(client, id)
        assert [event["type"].removeprefix("release.") for event in events] == [
            "started",
            "held",
            "resumed",
            "promoted",
        ]
        assert [event["data"]["release_version"] for event in events] == [2, 3, 4, 5]
        verified = (await client.get(f"/releases/{id}/verify")).json()
        assert verified == {"verified": True, "observations": 0, "events": 0, "differences": []}


async def test_a_trial_comes_first_and_does_not_promote(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        key = {"Idempotency-Key": "one"}
        better = await client.post(RELEASES, json={"step": 2}, headers=key)
        assert better.json()["state"] == "trial"
        again = await client.post(RELEASES, json={"step": 2}, headers=key)
        assert again.json() == better.json()
        id = better.json()["release_id"]
        release = await _in_state(client, id, "running")
        assert release["evaluation_id"] == better.json()["evaluation_id"]
        assert [
            promotion["step"] for promotion in (await client.get("/promotions/learnloop/live")).json()["items"]
        ] == [0]
        [started] = await release_events(client, id)
        assert started["data"]["evidence"]["trial"]["decision"] == "promote"
        assert (await client.post(f"/releases/{id}/rollback", json={"sessions": "end"})).status_code == 202

        # One that answers nothing either is not better by the margin.
        equal = await client.post(RELEASES, json={"step": 1})
        release = await _in_state(client, equal.json()["release_id"], "rolled_back")
        assert (release["reason"], release["started_at"]) == ("trial", None)
        assert "trial" in release["summary"]


async def test_a_trial_is_cancelled_with_its_release(data_dir: Path, database_url: str) -> None:
    begun = asyncio.Event()

    async def stuck(request: Json) -> Reply:
        if request:
            begun.set()
            await asyncio.Event().wait()
        return await scripted_engine(request)

    async with scripted_chat(stuck) as chat, release_service(data_dir, database_url, chat) as client:
        started = (await client.post(RELEASES, json={"step": 2})).json()
        await begun.wait()
        refused = await client.post(f"/releases/{started['release_id']}/promote")
        assert (refused.status_code, refused.json()["allowed"]) == (409, ["rollback"])
        assert (await client.post(f"/releases/{started['release_id']}/rollback")).status_code == 202

        async def trial() -> Json:
            return (await client.get(f"/evaluations/{started['evaluation_id']}")).json()

        await answered(trial, lambda evaluation: evaluation["status"] == "cancelled")


_REFUSED: list[tuple[Json, list[str | int], str]] = [
    ({"step": 9}, ["body", "step"], "no checkpoint 9"),
    ({"model": "nobody"}, ["body", "model"], "There is no model"),
    ({"model": "other/m", "step": 1}, ["body", "model"], "project learnloop"),
    ({"step": 2, "ramp": [0.2, 0.1]}, ["body", "ramp"], "larger than the one before"),
    ({"step": 2, "ramp": [0.6]}, ["body", "ramp", 0], "0.5"),
    ({"step": 2, "guardrails": {"slow": 0.05}}, ["body", "guardrails", "slow"], "leave it out with null"),
    ({"step": 2, "guardrails": {"slowness": 0.05}}, ["body", "guardrails", "slowness", "[key]"], "malformed"),
    ({"step": 2, "outcome": {}}, ["body", "outcome"], "exactly one"),
    ({"step": 2, "outcome": {"session_reward": [1, 0]}}, ["body", "outcome"], "low below high"),
    ({"step": 2, "goal": "not_worse"}, ["body"], "give margin with the goal not_worse"),
    ({"step": 2, "goal": "better", "margin": 0.02}, ["body"], "and only with it"),
    ({"step": 2, "goal": "not_worse", "margin": 0}, ["body", "margin"], "greater than 0"),
    ({"step": 2, "worth": 1}, ["body", "worth"], "less than 1"),
    ({}, ["body"], "give model, or step"),
]


async def test_what_cannot_be_released_is_said_with_its_field(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        for request, loc, message in _REFUSED:
            refused = await client.post(RELEASES, json=request)
            assert refused.status_code == 422, (request, refused.text)
            [problem] = refused.json()["errors"]
            assert (problem["loc"], message in problem["msg"]) == (loc, True), (request, problem)


async def test_a_checkpoint_against_itself_has_no_trial_and_a_warning(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        same = await client.post(RELEASES, json={"step": 0})
        assert (same.status_code, same.json()["state"]) == (202, "running")
        assert "stable checkpoint itself" in same.json()["warnings"][-1]
        unknown = await client.post("/promotions/learnloop/nothing/releases", json={"step": 0})
        assert unknown.status_code == 404


async def test_the_commands_show_a_release_and_why_it_was_taken_back(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:

        async def command(*words: str) -> Any:
            arguments = ["releases", *words, "--url", str(client.base_url)]
            return await asyncio.to_thread(CliRunner().invoke, cli, arguments)

        started = await command("start", "learnloop/live", "--step", "2", "--skip-trial", "--unit", "session")
        assert started.exit_code == 0, started.stderr
        first, summary, forecast = started.stdout.splitlines()
        id = first.split()[1]
        assert first == f"release {id} of learnloop/m@2 for learnloop/live"
        assert (summary, "nothing can be forecast" in forecast) == ("Users meet the candidate.", True)
        assert "so the guardrail slow is not watched" in started.stderr
        assert "30 more sessions have met the candidate" in (await command("show", id)).stdout
        assert (await command("hold", id)).stdout == "The share is held: a person decided so.\n"
        assert (await command("resume", id)).stdout == "Users meet the candidate.\n"
        assert "confirm with --yes" in (await command("promote", id)).stderr

        answers = [(Arm.STABLE, GOOD, 950), (Arm.CANDIDATE, MALFORMED, 20), (Arm.CANDIDATE, GOOD, 30)]
        await observe_all(database, id, answers)
        watched, why = await command("watch", id), "malformed replies 0% → 40%, evidence over 1,000,000 of 400\n"
        assert (watched.exit_code, watched.stdout.endswith(why)) == (1, True), watched.output
        assert "rolled_back, share 0: The candidate was taken back: it was worse" in watched.stdout
        description = (await command("show", id)).stdout
        assert why in description
        assert "errors 0%" not in description
        listed = (await command("list")).stdout
        assert id in listed
        assert "rolled_back (guardrail)" in listed
        verified = await command("verify", id)
        assert (verified.exit_code, "counted again from 1,000 observations" in verified.stdout) == (0, True)
        refused = await command("rollback", id)
        assert (refused.exit_code, "that is rolled back" in refused.stderr) == (1, True)


async def _asked(database: Database, users: int, name: str = "learnloop/live", days_ago: float = 3.0) -> None:
    """Let that many users have had a session of the name, three days ago."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    new = [
        {
            "id": str(ULID()),
            "project": "learnloop",
            "asked_model": name,
            "model": "learnloop/m@0",
            "backend": "embedded",
            "seed": 0,
            "explicit_restart": False,
            AgentSession.labels: {},
            "state": "ended",
            "expires_at": at,
            "opened_at": at,
            "user_hash": hashed(f"user {number}"),
        }
        for number in range(users)
    ]
    async with database.begin() as tx:
        for row in new:
            await tx.execute(insert(AgentSession).values(row))


async def test_with_too_few_users_outcomes_are_no_goal_and_the_reply_says_how_many_are_missing(
    data_dir: Path, database_url: str, database: Database
) -> None:
    better = {"goal": "better", "outcome": {"value": "resolved"}, "ramp": [0.5], "max_days": 30}
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        started = await started_release(client, **better)
        release = (await client.get(f"/releases/{started['release_id']}")).json()
        assert release["rules"]["goal"] == "better", "nothing is known of the users of a new name"
        await client.post(f"/releases/{started['release_id']}/rollback")

        await _asked(database, 280)
        few = await started_release(client, **better)
        shows = "With 20 new users a day, 30 days can show"
        assert few["forecast"]["note"].startswith(f"{shows} +20 points, so do not wait for outcomes")
        [warning] = [warning for warning in few["warnings"] if "Outcomes" in warning]
        assert warning.startswith("Outcomes decide nothing, because 678 users are missing to show an effect of 10")
        release = (await client.get(f"/releases/{few['release_id']}")).json()
        assert (release["rules"]["goal"], release["rules"]["worth"]) == ("guardrails", 0.03)
        await client.post(f"/releases/{few['release_id']}/rollback")

        # Where all users are alike, a forecast leaves nothing, and few users show much.
        alike = await started_release(client, **better | {"window_hours": 24})
        assert alike["forecast"]["note"].startswith(f"{shows} +5 points, not +3.")
        assert not [warning for warning in alike["warnings"] if "Outcomes" in warning]


def _outcomes(good: int) -> list[float | None]:
    return [*[1.0] * good, *[0.0] * (200 - good)]


async def test_while_a_promotion_is_confirmed_the_name_has_no_other_release(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        id = (await started_release(client, ramp=[0.5], goal="better", outcome={"value": "resolved"}))["release_id"]
        arms = {Arm.CANDIDATE: _outcomes(150), Arm.STABLE: [None] * 40 + _outcomes(90)}
        await enroll_all(database, id, arms)
        async with database.begin() as tx:  # look at it now
            await tx.execute(update(Release).values(looked_at=func.now() - timedelta(minutes=2)))
        release = await _in_state(client, id, "promoted")
        assert release["quality"].startswith("Better for users: +30.0 points of `resolved` (95% interval ")
        assert "400 of 440 windows were closed. So far measured on 0 new users" in release["quality"]
        assert release["effect"]["units"] == 400
        refused = await client.post(RELEASES, json={"step": 3, "skip_trial": True})
        assert (refused.status_code, refused.json()["release_id"]) == (409, id)
        assert "Users are confirming its promotion" in refused.json()["detail"]
        person = await client.post("/models/learnloop/m/promote", json={"step": 3, "as": "live"})
        assert person.status_code == 201, "a person can decide otherwise"
