"""Releases over HTTP: how one is started, shown, and ended by a person."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app as cli
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.app.release_stage import GOOD, MALFORMED, observe_all
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
        assert release["rules"]["guardrails"] == {"malformed": 0.03, "thumbs_down_1h": 0.05}
        assert release["salt"] is None
        assert release["next"] == (
            "The share becomes 20% when 30 more users have met the candidate and an increase of malformed replies and "
            "thumbs down within an hour above 10 points is ruled out."
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
        assert "Nothing was shown" in promoted["quality"]
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
        watched, why = await command("watch", id), "malformed replies 0% → 40%, evidence over 1,000,000 of 300\n"
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
