"""Learning from served answers: which ones, what is frozen, and what becomes of them when users withdraw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, select, update

from learnloop_service.app.agent_sessions.records import pack_answer
from learnloop_service.app.agent_sessions.served import AnswerSource, FrozenAnswers, WhyLeftOut, freeze
from learnloop_service.app.agent_sessions.task_draw import split_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Document, Iteration, Promotion, Run, SessionCall, UserScenario
from learnloop_service.app.schedules import scheduler
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.training.statistics import off_policy
from tests.conditions import answered
from tests.integration.app.agent_calls import completion
from tests.integration.app.learned_answers import (
    BODY,
    CHAMPION,
    SOURCE,
    STRANGE,
    MovingBackend,
    few_suffice,  # noqa: F401  # a fixture
    learning_service,
    serve,
    serve_many,
)
from tests.integration.app.scheduled import create, hashed, make_due
from tests.integration.app.served import run_with, start
from tests.opened_database import opened_database

_TEMPERED = {"temperature": 0.3}


async def _frozen(database: Database, **more: Any) -> FrozenAnswers:
    source = AnswerSource.model_validate({**SOURCE, **more})

    async def has_base(checkpoint: str) -> bool:
        return checkpoint != "learnloop/other@1"

    return await freeze(database, "learnloop", source, 0, 4, has_base)


@pytest.mark.parametrize(
    ("session", "cause"),
    [
        ({}, None),
        ({"reward": 0.0}, None),
        ({"reward": None}, None),  # it expired
        ({"model": "learnloop/m@1"}, None),  # whether another checkpoint can be used shows in the first iteration
        ({"calls": [{"temperature": 1.0}]}, None),
        ({"calls": [{"temperature": 0}, {}]}, None),
        ({"calls": [{"tools": [], "top_p": 1, "response_format": {"type": "text"}}]}, None),
        ({"may_train": False}, WhyLeftOut.REFUSED),
        ({"user": None}, WhyLeftOut.NO_USER),
        ({"backend": "serverless"}, WhyLeftOut.ELSEWHERE),
        ({"days_ago": 0.9}, WhyLeftOut.OPEN),
        ({"model": "learnloop/other@1"}, WhyLeftOut.OTHER_BASE),
        ({"is_exact": False}, WhyLeftOut.UNKNOWN),
        ({"calls": [{"temperature": 0}]}, WhyLeftOut.GREEDY),
        ({"calls": [_TEMPERED]}, WhyLeftOut.TEMPERED),
        ({"calls": [{"top_p": 0.9}]}, WhyLeftOut.CUT),
        ({"calls": [{"top_k": 20}]}, WhyLeftOut.CUT),
        ({"calls": [{"min_p": 0.1}]}, WhyLeftOut.CUT),
        ({"calls": [{"response_format": {"type": "json_object"}}]}, WhyLeftOut.CUT),
        ({"calls": [{"tool_choice": "required"}]}, WhyLeftOut.CUT),
    ],
)
async def test_what_is_known_before_the_answer_decides(
    database: Database, session: dict[str, Any], cause: WhyLeftOut | None
) -> None:
    id = await serve(database, **{"user": "u", **session})
    frozen = await _frozen(database)
    assert [row["id"] for row in frozen.rows] == ([] if cause else [f"session.{id}"])
    assert frozen.facts["left_out"] == ({str(cause): 1} if cause else {})


async def test_only_free_replies_of_a_session_are_trained_on(database: Database) -> None:
    await serve(database, "u", calls=[{}, _TEMPERED, {}], ids=(5, 6, 7))
    [row] = (await _frozen(database)).rows
    assert (row["tokens"], row["checkpoint"]) == (6, CHAMPION)


async def test_nobody_weighs_more_than_the_others(database: Database) -> None:
    for _ in range(5):
        await serve(database, "busy")
    await serve(database, "calm")
    frozen = await _frozen(database)
    assert sorted(frozen.users.values()).count(hashed("busy")) == 3
    assert frozen.facts["left_out"] == {WhyLeftOut.MANY: 2}
    assert (await _frozen(database)).rows == frozen.rows
    assert len((await _frozen(database, per_user=1)).rows) == 2


async def test_users_keep_their_split_and_sessions_their_iteration(database: Database) -> None:
    await serve_many(database, 30)
    rows = (await _frozen(database)).rows
    users = (await _frozen(database)).users
    assert all(row["split"] == split_of(users[row["id"]]) for row in rows)
    assert all((row["iteration"] == 0) == (row["split"] != "train") for row in rows)
    assert {row["iteration"] for row in rows} == {0, 1, 2, 3, 4}
    await serve(database, "late", days_ago=2)
    again = {row["id"]: row["iteration"] for row in (await _frozen(database)).rows}
    assert again.items() >= {row["id"]: row["iteration"] for row in rows}.items()


@pytest.mark.parametrize(
    ("changed", "part", "says"),
    [
        ({"rewarded": True}, "sessions", "answers are not chosen by how they went"),
        ({"feedback": "negative"}, "sessions", "answers are not chosen by how they went"),
        ({"outcome": {"feedback": {"none": 0.5}}}, "outcome", "asking back would pay"),
        ({"outcome": None}, "outcome", "Input should be an object"),
        ({"model": "learnloop/none"}, "model", "Nothing is promoted to learnloop/none"),
        ({}, "sessions", "300 answers to 100 users are needed, and there are 0 answers to 0 users"),
    ],
)
async def test_what_is_refused(
    data_dir: Path, database_url: str, changed: dict[str, Any], part: str, says: str
) -> None:
    async with learning_service(data_dir, database_url, MovingBackend()) as client:
        reply = await client.post("/learn-loop", json={"source": {"sessions": {**SOURCE, **changed}}})
        assert reply.status_code == 422, reply.text
        [error] = reply.json()["errors"]
        assert part in error["loc"], reply.text
        assert says in error["msg"], reply.text


async def test_too_few_answers_are_counted_by_cause(data_dir: Path, database_url: str, database: Database) -> None:
    async with learning_service(data_dir, database_url, MovingBackend()) as client:
        await serve_many(database, 3, calls=[{"temperature": 0}])
        await serve_many(database, 1)
        reply = await client.post("/learn-loop", json=BODY)
        assert reply.status_code == 422
        assert "4 sessions, 3 of them at temperature 0: see explore." in reply.text


async def _metrics(client: httpx.AsyncClient, run: Any) -> list[Any]:
    """The train metrics of each iteration."""
    items = (await client.get(f"/runs/{run['run_id']}/iterations")).json()["items"]
    return [item["train_metrics"] for item in items]


async def _learned(client: httpx.AsyncClient) -> Any:
    run = await run_with(client, await start(client, BODY), "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return run


async def test_each_answer_is_trained_once(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    backend = MovingBackend()
    async with learning_service(data_dir, database_url, backend) as client:
        await serve_many(database, 40)
        run = await _learned(client)
        assert run["model"]["base_model"] == CHAMPION
        async with database() as tx:
            stored = (await tx.execute(select(Run).where(Run.id == run["run_id"]))).scalar_one()
            rows = (await tx.execute(select(Document.content).where(Document.kind == "served"))).scalar_one()
        requests = backend.policy(stored.model_name).requests
        rewards = [[trajectory.reward for trajectory in request.groups[0].trajectories] for request in requests]
        by_iteration = [[row for row in rows if row["iteration"] == number] for number in (1, 2)]
        for learned, frozen in zip(rewards, by_iteration, strict=True):
            assert learned == [pytest.approx(row["outcome"] - row["forecast"]) for row in frozen]
        assert [request.learning_rate for request in requests] == [7e-4, 7e-4]
        options = requests[0].options
        assert options["max_kl"] == pytest.approx(0.2 / 2 / 2)
        assert (options["epsilon"], options["epsilon_high"], options["mask_prob_ratio"]) == (1, 3, True)
        assert not options["scale_rewards"]
        [_, metrics, _] = await _metrics(client, run)
        assert metrics["served_answers"] == len(by_iteration[0])
        assert metrics["served_held_out"] == sum(row["iteration"] == 0 for row in rows)
        assert run["best_checkpoint"]["step"] == 2
        held_out = f"{metrics['served_held_out']:.0f} answers to users that it did not train on"
        assert run["warnings"][-1] == f"{held_out} cannot show whether it gained."


async def _rows(database: Database) -> list[Any]:
    async with database() as tx:
        rows: list[Any] = (await tx.execute(select(Document.content).where(Document.kind == "served"))).scalar_one()
    return rows


async def _events(client: httpx.AsyncClient, run: Any, type: str) -> list[Any]:
    events = (await client.get(f"/runs/{run['run_id']}/events", params={"limit": 200})).json()["items"]
    return [event["data"] for event in events if event["type"] == type]


@pytest.mark.parametrize("how", ["withdrawn", "deleted", "damaged"])
async def test_no_token_of_a_user_is_in_a_later_request(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
    how: str,
) -> None:
    """Something happens to two of the second iteration's sessions while the first one is trained."""

    async def meanwhile() -> None:
        async with opened_database(database_url) as opened:
            second = [row["id"].removeprefix("session.") for row in await _rows(opened) if row["iteration"] == 2][:2]
            which = AgentSession.id.in_(second)
            change: Any = {
                "withdrawn": update(AgentSession).where(which).values(may_train=False),
                "deleted": delete(AgentSession).where(which),
                "damaged": update(SessionCall)
                .where(SessionCall.session_id.in_(second))
                .values(answer=pack_answer(completion("no", 8, 8, 8))),
            }[how]
            async with opened.begin() as tx:
                await tx.execute(change)

    backend = MovingBackend(meanwhile=meanwhile)
    async with learning_service(data_dir, database_url, backend) as client:
        await serve_many(database, 40)
        run = await _learned(client)
        rows = [row for row in await _rows(database) if row["iteration"] == 2]
        [_, first, second] = await _metrics(client, run)
        lost = {"served_withdrawn": 0.0, "served_damaged": 2.0} if how == "damaged" else {"served_withdrawn": 2.0}
        assert second.items() >= (lost | {"served_answers": len(rows) - 2}).items()
        assert (first["served_withdrawn"], first["served_damaged"]) == (0, 0)
        [_, request] = backend.policy(run["model"]["name"]).requests
        expected = [pytest.approx(row["outcome"] - row["forecast"]) for row in rows[2:]]
        assert [trajectory.reward for trajectory in request.groups[0].trajectories] == expected
        assert await _events(client, run, "served.withdrawn") == ([] if how == "damaged" else [{"count": 2}])
        named = sorted(row["id"].removeprefix("session.") for row in rows[:2])
        damaged = [{"damaged": named, "dropped": named}] if how == "damaged" else []
        assert await _events(client, run, "journal.damaged") == damaged
        assert (run["reproducible"], "Iteration 2 lacked answers" in run["reproducible_reason"]) == (False, True)


async def test_a_checkpoint_is_used_with_all_of_its_answers_or_with_none(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    """Step 0 of the new model gives the tokens of one earlier checkpoint as they were recorded, but not the others."""
    backend = MovingBackend()
    near, far = "learnloop/m@1", "learnloop/m@2"
    async with learning_service(data_dir, database_url, backend) as client:
        await serve_many(database, 20)
        await serve_many(database, 10, model=near)
        for user in range(10):
            await serve(database, f"far{user}", user % 2, model=far, ids=(5,) if user else (5, STRANGE))
        run = await _learned(client)
        [_, first, second] = await _metrics(client, run)
        assert first[f"served_effective_share/{near}"] == 1
        assert first[f"served_effective_share/{far}"] < 0.5
        learned = first["served_answers"] + second["served_answers"]
        trained = [row for row in await _rows(database) if row["iteration"] and row["checkpoint"] != far]
        assert learned == len(trained)
        assert any(row["checkpoint"] == near for row in trained)


@pytest.mark.parametrize(("moves", "best"), [({5: 0.2, 6: -0.2}, 0), ({5: -0.2, 6: 0.2}, 2)])
async def test_a_run_that_is_shown_to_do_harm_goes_back_to_its_start(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    moves: dict[int, float],
    best: int,
) -> None:
    """Token 5 is in bad answers, and token 6 in good ones."""
    monkeypatch.setattr(off_policy, "LEAST_SHOWN", 10)
    backend = MovingBackend(moves)
    async with learning_service(data_dir, database_url, backend) as client:
        await serve_many(database, 60)
        run = await _learned(client)
        [*_, last] = await _metrics(client, run)
        assert (last["served_gain_high"] < 0, run["best_checkpoint"]["step"]) == (best == 0, best)
        assert last["served_gain_low"] <= last["served_gain"] <= last["served_gain_high"]
        learned_from, shown = run["warnings"][0], run["warnings"][-1]
        assert learned_from.startswith("Learns from 60 answers to 60 users whose windows are closed; outcome 0.50, ")
        gain = f"{100 * last['served_gain']:+.1f}"
        assert f" to users that it did not train on the gain is estimated at {gain} points (90% interval" in shown


async def test_a_run_stops_once_answers_have_moved_far_and_says_so(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    backend = MovingBackend({5: -0.9, 6: -0.9})
    async with learning_service(data_dir, database_url, backend) as client:
        await serve_many(database, 40)
        run = await _learned(client)
        [_, first, last] = await _metrics(client, run)
        assert first["served_answers"] > 0 == last["served_answers"]
        assert first["served_kl"] == last["served_kl"] == pytest.approx(0)
        assert first["served_moved_too_far"] == last["served_moved_too_far"] > 0.4
        moved = f"{last['served_moved_too_far']:.2f}"
        stopped = f" The run stopped after 0 of 2 steps: the next one moved answers by {moved} nats in all, which is"
        assert run["warnings"][-1].endswith(f"{stopped} too far.")
        assert run["best_checkpoint"]["step"] == 0


async def test_a_deleted_user_leaves_no_link_and_his_checkpoints_are_named(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    secret = "a key for tests, of 32 characters"
    async with learning_service(data_dir, database_url, MovingBackend(), secret_key=secret) as client:
        await serve_many(database, 40)
        mine = await serve(database, "mine")
        hash = UserHasher(secret.encode()).hash_of("mine")
        async with database.begin() as tx:
            await tx.execute(update(AgentSession).where(AgentSession.id == mine).values(user_hash=hash))
        run = await _learned(client)
        [row] = [row for row in await _rows(database) if row["id"] == f"session.{mine}"]
        gone = (await client.post("/users/delete", json={"user": "mine"})).raise_for_status().json()
        assert {kind: count for kind, count in gone["deleted"].items() if count} == {"sessions": 1}
        assert gone["unfinished"] == gone["remaining"] == []
        model = f"learnloop/{run['model']['name']}"
        assert gone["trained_checkpoints"] == ([f"{model}@1", f"{model}@2"] if row["split"] == "train" else [])
        async with database() as tx:
            links = (await tx.execute(select(UserScenario).where(UserScenario.user_hash == hash))).all()
        assert (links, row in await _rows(database)) == ([], True)


async def _due_time(client: httpx.AsyncClient, schedule: Any, condition: Callable[[Any], object]) -> Any:
    async def ask() -> Any:
        items = (await client.get(f"/schedules/{schedule['id']}/runs")).raise_for_status().json()["items"]
        return next(iter(items), None)

    return await answered(ask, lambda due_time: due_time is not None and condition(due_time))


@pytest.mark.parametrize(
    ("users", "more", "reason", "detail"),
    [
        (3, {}, "too_few_answers", "are needed, and there are 3 answers to 3 users"),
        (
            6,
            {"reward": 1.0},
            "outcome_constant",
            "1 answers above and below the mean are needed, and there are 6 answers",
        ),
    ],
)
async def test_a_due_time_without_enough_answers_is_skipped(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    users: int,
    more: dict[str, Any],
    reason: str,
    detail: str,
) -> None:
    monkeypatch.setattr(scheduler, "LOOK_EVERY_S", 0.1)
    async with learning_service(data_dir, database_url, MovingBackend()) as client:
        for user in range(users):
            await serve(database, f"user{user}", **{"reward": user % 2, **more})
        schedule = await create(client, run=BODY, then="nothing")
        assert schedule["promoted_name"] == "learnloop/live"
        await make_due(database)
        skipped = await _due_time(client, schedule, lambda due_time: due_time["state"] == "skipped")
        assert (skipped["reason"], skipped["run_id"]) == (reason, None)
        assert detail in skipped["detail"]


@pytest.mark.parametrize(
    ("moves", "is_overtaken", "then", "reason"),
    [
        ({}, True, "release", "overtaken"),
        ({5: 0.2, 6: -0.2}, False, "release", "not_learned"),
        ({}, False, "nothing", None),
    ],
)
async def test_what_follows_a_run_on_answers(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    moves: dict[int, float],
    is_overtaken: bool,
    then: str,
    reason: str | None,
) -> None:
    monkeypatch.setattr(scheduler, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(off_policy, "LEAST_SHOWN", 10)

    async def meanwhile() -> None:
        if is_overtaken:
            async with opened_database(database_url) as opened, opened.begin() as tx:
                await tx.execute(update(Promotion).values(step=7))

    async with learning_service(data_dir, database_url, MovingBackend(moves, meanwhile)) as client:
        await serve_many(database, 60)
        schedule = await create(client, run=BODY, then=then)
        await make_due(database)
        night = await _due_time(client, schedule, lambda due_time: due_time["state"] != "running")
        assert (night["run_status"], night["started_from"], night["tasks"]) == ("completed", CHAMPION, 60)
        assert night["reason"] == reason, night["detail"]


async def test_a_run_on_answers_is_verified(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    async with learning_service(data_dir, database_url, MovingBackend()) as client:
        sessions = await serve_many(database, 40)
        run = await _learned(client)

        async def verified() -> Any:
            return (await client.get(f"/runs/{run['run_id']}/verify")).raise_for_status().json()

        assert (await verified())["ok"]
        async with database.begin() as tx:
            first = await tx.get_one(Iteration, (run["run_id"], 1))
            first.train_metrics, metrics = {}, first.train_metrics
        differences = (await verified())["differences"]
        assert [difference["what"] for difference in differences] == ["served_held_out", "served_kl"]
        async with database.begin() as tx:
            (await tx.get_one(Iteration, (run["run_id"], 1))).train_metrics = metrics
        async with database.begin() as tx:
            forged = update(AgentSession).where(AgentSession.id == sessions[1])
            await tx.execute(forged.values(outcome={"reward": 0.25}))
            damaged = update(SessionCall).where(SessionCall.session_id == sessions[2])
            await tx.execute(damaged.values(answer=pack_answer(completion("no", 8, 8))))
        differences = (await verified())["differences"]
        named = {(difference["what"], difference["stored"]) for difference in differences}
        assert (f"outcome of session.{sessions[1]}", 1.0) in named
        assert any(what == f"sha256 of session.{sessions[2]}" for what, _ in named)
        async with database.begin() as tx:
            await tx.execute(delete(AgentSession).where(AgentSession.id.in_(sessions[1:4])))
        assert (await verified())["ok"]


async def test_an_agent_attempts_what_held_out_users_asked(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    agent = {"name": "agent", "config": {"runner": {"python": "tests.fakes.own_agents:replaying"}}}
    async with learning_service(data_dir, database_url, MovingBackend(), agent_modules="tests.fakes") as client:
        for user in range(30):
            await serve(database, f"user{user}", user % 2, question=f"Question of {user}?")
        run_id = await start(client, {**BODY, "environment": agent, "judge": {"name": "reported"}})
        run = (await client.get(f"/runs/{run_id}")).json()
        assert run["request"]["environment"]["config"]["scenarios"]["count"] == 30
        assert run["request"]["evaluation"]["scenarios"] > 0
        async with database() as tx:
            scenarios = (await tx.execute(select(Document.content).where(Document.kind == "scenarios"))).scalar_one()
        splits = {row["id"]: row["split"] for row in await _rows(database)}
        assert {row["id"]: row["split"] for row in scenarios} == splits


async def test_a_session_says_which_step_learned_from_it_or_why_none_did(
    data_dir: Path,
    database_url: str,
    database: Database,
    few_suffice: None,  # noqa: F811
) -> None:
    async def meanwhile() -> None:
        async with opened_database(database_url) as opened:
            [withdrawn, *_] = [row["id"] for row in await _rows(opened) if row["iteration"] == 2]
            which = AgentSession.id == withdrawn.removeprefix("session.")
            async with opened.begin() as tx:
                await tx.execute(update(AgentSession).where(which).values(may_train=False))

    async with learning_service(data_dir, database_url, MovingBackend(meanwhile=meanwhile)) as client:
        busy = [await serve(database, "busy") for _ in range(5)]
        others = {
            await serve(database, "late", days_ago=0.9): WhyLeftOut.OPEN,
            await serve(database, "strict", may_train=False): WhyLeftOut.REFUSED,
            await serve(database, "cold", calls=[{"temperature": 0}]): WhyLeftOut.GREEDY,
        }
        await serve_many(database, 40)

        async def learned(id: str) -> Any:
            return (await client.get(f"/sessions/{id}")).raise_for_status().json()["learned"]

        assert await learned(busy[0]) is None
        run = await _learned(client)
        rows = {row["id"].removeprefix("session."): row for row in await _rows(database)}
        others |= {id: WhyLeftOut.MANY for id in busy if id not in rows}
        assert len(others) == 5
        for id, why in others.items():
            assert ((await learned(id))["run_id"], (await learned(id))["why_not"]) == (run["run_id"], why)
        withdrawn = next(id for id, row in rows.items() if row["iteration"] == 2)
        for id, row in rows.items():
            said = await learned(id)
            known = {"run_id": run["run_id"], "outcome": row["outcome"], "expected": row["forecast"]}
            assert said.items() >= known.items()
            number = row["iteration"]
            held_out = {"step": None, "why_not": "held out to estimate the gain"}
            trained = {"step": number, "why_not": None}
            lost = {"step": None, "why_not": "withdrawn before its step"}
            assert said.items() >= (held_out if not number else lost if id == withdrawn else trained).items()
        async with database.begin() as tx:
            second = await tx.get_one(Iteration, (run["run_id"], 2))
            second.train_metrics = {**second.train_metrics, "served_answers": 0}
        assert (await learned(withdrawn))["why_not"] == "of a step that is not taken"
