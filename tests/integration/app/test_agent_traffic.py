"""Runs over what agents were asked in production: of each session the first request and what its tools answered."""

import ast
from datetime import timedelta
from pathlib import Path
from typing import Any

from learnloop_service.app.agent_sessions.store import AgentSessions, RolloutSlot, SessionSpec
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.db.database import Database
from learnloop_service.training.rollout.agents.sessions import SessionOutcome
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.own_agent_runs import get, request
from tests.integration.app.served import served, settings_for
from tests.integration.app.worked_sessions import PROMOTED, worked


async def test_sessions_of_production_become_scenarios(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for number, reward in enumerate((0.0, 0.25, 0.25, 0.5, 1.0, None)):
            await worked(database, f"Question {number}?", reward)
        await worked(database, "Question 3?", 0.5)  # the same again
        await worked(database, "A secret?", 0.0, project="sales")
        unasked = await AgentSessions(database).open(_CONSENTED)
        await AgentSessions(database).end(LOCAL, unasked.row.id, SessionOutcome(reward=0.0))

        async def post(more: Any = None, **which: Any) -> Any:
            agent_config = {"name": "agent", "config": {"runner": {"pull": {}}}}
            body = request({}, environment=agent_config, source={"sessions": which}) | (more or {})
            return await client.post("/learn-loop", json=body)

        posted = (await post(reward_below=0.9, model="mail/agent")).raise_for_status().json()
        assert posted["warnings"][0] == (
            "4 scenarios from 6 sessions; left out: 1 without an answered call, 1 with the task of a newer one."
        )
        assert "other calls of tools have no recorded answer" in posted["warnings"][1]
        run = await get(client, f"/runs/{posted['run_id']}")
        hash = run["request"]["environment"]["config"]["scenarios"]["sha256"]
        stored = {scenario["task"]["messages"][0]["content"]: scenario for scenario in await _stored(client, hash)}
        assert set(stored) == {f"Question {number}?" for number in range(4)}
        first = stored["Question 0?"]
        assert first["task"]["tool_results"] == [{"name": "search", "arguments": "{}", "content": "m1"}]
        assert len(first["task"]["messages"]) == 1
        assert first["reference"]["outcome"] == {"reward": 0.0}

        few = await post(reward_below=0.1)
        assert few.status_code == 422
        assert (
            "finds 2 sessions outside of runs with consent to training, and 1 different task with an answer" in few.text
        )
        for more in ({"environment": {"name": "email_search"}}, {"environment": request({"pull": {}})["environment"]}):
            assert (await post(more)).json()["errors"][0]["loc"] == ["body", "source"]
        assert (await post(stars=5)).json()["errors"][0]["loc"][-1] == "stars"


async def test_what_users_thought_later_chooses_the_sessions(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        worst, bad, beaten, good, mixed, silent = [await worked(database, f"Question {n}?", None) for n in range(6)]

        async def post(**event: Any) -> Any:
            return (await client.post("/feedback", json=event)).raise_for_status().json()

        feedback_events: list[Any] = [
            {"event_id": "a", "type": "thumbs_down", "session_id": worst, "comment": "The wrong invoice."},
            {"event_id": "b", "type": "thumbs_down", "session_id": bad},
            {"event_id": "c", "type": "preferred", "session_id": good, "over": beaten, "confidence": 0.5},
            {"event_id": "d", "type": "thumbs_up", "session_id": mixed, "confidence": 0.25},
            {"event_id": "e", "type": "thumbs_down", "session_id": mixed, "confidence": 0.25},
        ]
        assert (await post(events=feedback_events))["links"][bad] == f"/sessions/{bad}/feedback"
        assert (await post(events=feedback_events))["duplicates"] == 5
        assert (await get(client, f"/sessions/{beaten}"))["feedback"] == {
            "events": 1,
            "wins": 0.0,
            "losses": 0.5,
            "simulated": False,
        }
        assert (await get(client, f"/sessions/{silent}"))["feedback"] is None
        listed = {session["id"]: session["feedback"] for session in (await get(client, "/sessions"))["items"]}
        assert {id for id, sums in listed.items() if sums} == {worst, bad, beaten, good, mixed}
        [event] = (await get(client, f"/sessions/{worst}/feedback"))["items"]
        assert event | {"type": "thumbs_down", "comment": "The wrong invoice.", "over": None} == event

        async def chosen(feedback: str) -> Any:
            agent_config = {"name": "agent", "config": {"runner": {"pull": {}}}}
            body = request({}, environment=agent_config, source={"sessions": {"feedback": feedback}})
            return await client.post("/learn-loop", json=body)

        posted = (await chosen("negative")).raise_for_status().json()
        assert "no reward of the new rollouts" in posted["warnings"][2]
        run = await get(client, f"/runs/{posted['run_id']}")
        stored = await _stored(client, run["request"]["environment"]["config"]["scenarios"]["sha256"])
        references = {scenario["reference"]["session_id"]: scenario["reference"]["feedback"] for scenario in stored}
        assert set(references) == {worst, bad, beaten}
        assert references[worst] == {"wins": 0.0, "losses": 1.0, "comments": ["The wrong invoice."]}
        for feedback, count in (("any", 5), ("positive", 1), ("none", 1)):
            reply = await chosen(feedback)
            if count > 2:
                assert f"{count} scenarios from {count} sessions" in reply.json()["warnings"][0]
            else:
                assert f"finds {count} session " in reply.text
        assert (await chosen("bad")).json()["errors"][0]["loc"][-1] == "feedback"


async def test_what_a_session_takes_no_feedback_for(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        own_id, theirs = await worked(database, "Why?", 1.0), await worked(database, "How?", 1.0, project="sales")
        async with database.begin() as tx:
            rollout = (await AgentSessions(database).open_in(tx, _ROLLOUT)).row.id
        for status, message, event in (
            (422, "has no email", {"type": "replied", "session_id": own_id}),
            (404, "no session 'nobody'", {"type": "thumbs_up", "session_id": "nobody"}),
            (404, "no session 'nobody'", {"type": "preferred", "session_id": own_id, "over": "nobody"}),
            (422, "over itself", {"type": "preferred", "session_id": own_id, "over": own_id}),
            (422, "different projects", {"type": "preferred", "session_id": own_id, "over": theirs}),
            (422, "feedback on its trajectory", {"type": "thumbs_up", "session_id": rollout}),
            (422, "either trajectory_id, or session_id", {"type": "thumbs_up", "session_id": own_id, "run_id": "r"}),
            (
                422,
                "either trajectory_id, or session_id",
                {"type": "thumbs_up", "session_id": own_id, "trajectory_id": "t"},
            ),
            (422, "comment is only allowed for", {"type": "sent", "trajectory_id": "t", "comment": "Well!"}),
        ):
            refused = await client.post("/feedback", json={"event_id": "x", **event})
            assert (refused.status_code, message in refused.text) == (status, True), refused.text
        event = {"event_id": "x", "type": "thumbs_up", "session_id": own_id, "comment": "Well!"}
        assert (await client.post("/feedback", json=event)).json()["accepted"] == 1
        changed = await client.post("/feedback", json=event | {"comment": "Badly!"})
        assert (changed.status_code, "different comment" in changed.text) == (409, True)


async def test_who_refused_is_not_trained_on(data_dir: Path, database_url: str, database: Database) -> None:
    settings = settings_for(data_dir, database_url, train_on_projects=("shop",))
    async with served(settings, ScriptedLoop()) as client:
        for number in range(3):
            await worked(database, f"Question {number}?", 0.5)
        await worked(database, "A secret?", 0.5, may_train=False)
        for number in range(4):
            await worked(database, f"Bargain {number}?", 0.5, project="shop", may_train=False)

        async def post(project: str) -> Any:
            agent_config = {"name": "agent", "config": {"runner": {"pull": {}}}}
            body = request({}, environment=agent_config, source={"sessions": {}})
            return await client.post("/learn-loop", json=body | {"model": {"project": project, "name": "m"}})

        posted = (await post("learnloop")).raise_for_status().json()
        assert posted["warnings"][0].startswith("3 scenarios from 3 sessions;")
        assert posted["warnings"][1].startswith("not used, although the filter fits: 1 session opened without")
        config = (await get(client, f"/runs/{posted['run_id']}"))["request"]["environment"]["config"]
        stored = await _stored(client, config["scenarios"]["sha256"])
        assert "A secret?" not in {scenario["task"]["messages"][0]["content"] for scenario in stored}
        none = await post("shop")
        assert none.status_code == 422
        assert "finds 0 sessions outside of runs with consent to training" in none.text
        assert "not used, although the filter fits: 4 sessions" in none.text


def test_consent_is_asked_in_one_place() -> None:
    for file in Path("app").rglob("*.py"):
        reads = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and node.attr == "may_train"
        ]
        assert not reads or str(file) in _READ_CONSENT, file


_READ_CONSENT = {
    "app/agent_sessions/consent.py",
    "app/agent_sessions/store.py",
    "app/api/agent_sessions.py",
    "app/operations/delete_user.py",
}
"""The second one stores what a request said, the third one shows it, and the last one changes it."""
_CONSENTED = SessionSpec("learnloop", PROMOTED, timedelta(hours=1), may_train=True)
_ROLLOUT = SessionSpec("learnloop", PROMOTED, timedelta(hours=1), slot=RolloutSlot(None, 1, "rollout/train/0"))


async def _stored(client: Any, hash: str) -> list[Any]:
    scenarios: list[Any] = (await get(client, f"/scenarios/{hash}"))["scenarios"]
    return scenarios
