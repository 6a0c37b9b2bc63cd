"""Schedules: their runs, what follows them, why there is none, and that a due time makes exactly one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, insert, select, update
from typer.testing import CliRunner

import learnloop_service.app.schedules.scheduler
from learnloop_service.app.agent_sessions.task_draw import split_of
from learnloop_service.app.cli.main import app as cli
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Promotion, Release, Run, Schedule, ScheduleRun, Trajectory, UserScenario
from learnloop_service.app.domain.cron import latest_time
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.schedules.scheduler import scheduler_of
from learnloop_service.app.schedules.store import DueTimeTaken, ScheduleStore
from learnloop_service.app.service import HandlerResources, open_service
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.crashes import Crashes, Died
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.scheduled import RUN, create, hashed, make_due, session_of, sessions_of
from tests.integration.app.served import run_with, served, settings_for

NAME = "learnloop/live"
SECRET = "a key for tests, of 32 characters"


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services look for due times all the time."""
    monkeypatch.setattr(learnloop_service.app.schedules.scheduler, "LOOK_EVERY_S", 0.1)


@asynccontextmanager
async def _promoted(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A service with a champion, `learnloop/live`. Nightly checkpoints answer right, this champion does not."""
    backend = ScriptedBackend()

    async def engine(request: Json) -> Reply:
        if request:
            return Reply(content="yes" if "nightly" in request["model"] else "no")
        models = {f"{model.project}/{model.name}": policy for model, policy in backend.policies.items()}
        listed = [{"id": id, "steps": list(range(await policy.step() + 1))} for id, policy in models.items()]
        return Reply(body={"data": listed})

    async with scripted_chat(engine) as chat:
        backend.endpoint_url = chat.url
        settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
        async with served(settings, ScriptedLoop(**more), backend) as client:
            posted = await client.post("/learn-loop", json={"iterations": 1, "model": {"name": "m"}})
            await run_with(client, posted.json()["run_id"], "completed")
            await client.post("/models/learnloop/m/promote", json={"step": 0, "as": "live"})
            yield client


async def _due_times(client: httpx.AsyncClient, id: str) -> list[Any]:
    items: list[Any] = (await client.get(f"/schedules/{id}/runs")).raise_for_status().json()["items"]
    return items


async def _noticed(client: httpx.AsyncClient, id: str, is_expected: Any) -> Any:
    async def ask() -> Any:
        return next(iter(await _due_times(client, id)), None)

    return await answered(ask, lambda due_time: due_time is not None and is_expected(due_time))


async def test_a_night_starts_from_the_champion_and_ends_in_a_trial(
    data_dir: Path, database_url: str, database: Database, quick_looks: None
) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 70)
        schedule = await create(client, least_new_tasks=50)
        assert (schedule["promoted_name"], schedule["paused"], len(schedule["next_times"])) == (NAME, False, 3)
        assert schedule["next_times"][0].endswith("T02:00:00Z")
        await make_due(database)
        night = await _noticed(client, schedule["id"], lambda due_time: due_time["decision"])
        assert (night["state"], night["decision"], night["reason"]) == ("done", "promote", None)
        assert (night["started_from"], night["run_status"]) == ("learnloop/m@0", "completed")
        assert night["due_at"] == latest_time("0 2 * * *", datetime.now(UTC)).isoformat().replace("+00:00", "Z")
        assert 40 < night["tasks"] == night["users"] <= 70

        run = (await client.get(f"/runs/{night['run_id']}")).json()
        assert run["model"]["base_model"] == "learnloop/m@0"
        assert run["model"]["name"].startswith("nightly-")
        [now, first] = (await client.get(f"/promotions/{NAME}")).json()["items"]
        assert now["model"] == f"learnloop/{run['model']['name']}"
        assert now["evidence"]["evaluation_id"] == night["evaluation_id"]
        assert (now["actor"], first["step"]) == (f"schedule:{schedule['id']}", 0)

        after_trial = (await client.get(f"/schedules/{schedule['id']}")).json()
        assert (after_trial["trials"], after_trial["expected_wrong_promotions"]) == (1, 0.05)
        assert after_trial["last"] == night

        # The next night finds nothing new, and says so once.
        await make_due(database, days=0.001)
        async with database.begin() as tx:
            await tx.execute(update(ScheduleRun).values(due_at=ScheduleRun.due_at - _DAY))
        skipped = await _noticed(client, schedule["id"], lambda due_time: due_time["state"] == "skipped")
        assert (skipped["reason"], skipped["run_id"]) == ("too_few_tasks", None)
        assert skipped["detail"] == ("New since the last run's draw: 0 consented tasks, and least_new_tasks is 50.")


_DAY = func.make_interval(0, 0, 0, 1)


async def test_tasks_are_those_that_users_consented_to(data_dir: Path, database_url: str, database: Database) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 12, 3)
        for number in range(4):
            await session_of(database, f"user{number}", f"A secret {number}?", may_train=False)
            await session_of(database, None, f"Whose question is {number}?")
            await session_of(database, f"user{number}", f"Asked elsewhere {number}?", project="sales")
        schedule = await create(client)
        started = (await client.post(f"/schedules/{schedule['id']}/run")).raise_for_status().json()
        assert (started["state"], started["reason"]) == ("running", None)
        run = (await client.get(f"/runs/{started['run_id']}")).json()
        hash = run["request"]["environment"]["config"]["scenarios"]["sha256"]
        rows = (await client.get(f"/scenarios/{hash}")).json()["scenarios"]
        async with database() as tx:
            users = dict((await tx.execute(select(UserScenario.scenario_id, UserScenario.user_hash))).all())
        assert len(rows) == started["tasks"] == len(users)
        for row in rows:
            [message] = row["task"]["messages"]
            assert message["content"].startswith("Question")
            assert row["split"] == split_of(users[row["id"]])
            assert users[row["id"]] == hashed(f"user{message['content'].split()[-1].rstrip('?')}")
            # A thousand draws of 36 tasks, three of each of twelve users.
            assert row["reference"]["inclusion_probability"] == pytest.approx(1 - (1 - 1 / 36) ** 1_000)


async def test_questions_to_a_promoted_name_are_tasks_as_well(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with _promoted(data_dir, database_url) as client:
        schedule = await create(client)
        async with database.begin() as tx:
            await tx.execute(insert(Trajectory), [_ask(f"user{n}", f"q{n}") for n in range(30)])
            await tx.execute(insert(Trajectory), [_ask("user1", "other", asked_as="learnloop/other")])
        started = (await client.post(f"/schedules/{schedule['id']}/run")).raise_for_status().json()
        run = (await client.get(f"/runs/{started['run_id']}")).json()
        hash = run["request"]["environment"]["config"]["scenarios"]["sha256"]
        rows = (await client.get(f"/scenarios/{hash}")).json()["scenarios"]
        assert {row["task"]["messages"][-1]["content"] for row in rows} == {f"q{n}" for n in range(30)}
        [row] = [row for row in rows if row["id"] == "ask.q7"]
        assert row["task"]["messages"] == [{"role": "system", "content": "Help."}, {"role": "user", "content": "q7"}]
        assert row["task"]["tool_results"] == [{"name": "search", "arguments": "{}", "content": "m1"}]


def _ask(user: str, question: str, asked_as: str = NAME) -> dict[str, Any]:
    called = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    return {
        "id": question,
        "asked_as": asked_as,
        "user_hash": hashed(user),
        "may_train": True,
        "kind": "ask",
        "split": "test",
        "mode": "greedy",
        "model": "learnloop/m@0",
        "step": 0,
        "scenario_id": "ask",
        "scenario": {"task": {"question": question}, "reference": {}},
        "messages": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "m1"},
            {"role": "assistant", "content": "yes"},
        ],
        "tools": [],
        "outcome": {},
        "score_parts": {},
        "reward_parts": {},
        "turns": 2,
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "seconds": 0.5,
        "started_at": datetime(2026, 3, 14, tzinfo=UTC),
    }


async def test_why_no_run_is_started(data_dir: Path, database_url: str, database: Database) -> None:
    async with _promoted(data_dir, database_url) as client:
        schedule = await create(client)

        async def run_now() -> Any:
            return (await client.post(f"/schedules/{schedule['id']}/run")).raise_for_status().json()

        assert (await run_now())["reason"] == "too_few_tasks"
        for number in range(4):
            await session_of(database, "alone", f"Question {number}?")
        few = await run_now()
        assert (few["reason"], few["state"]) == ("too_few_users", "skipped")
        assert "by 1 user none" in few["detail"]
        async with database.begin() as tx:
            promotion = (await tx.execute(select(Promotion.id))).scalar_one()
            await tx.execute(insert(Release), [_release(promotion)])
        blocked = await run_now()
        assert (blocked["reason"], "has not ended" in blocked["detail"]) == ("release_live", True)
        async with database.begin() as tx:
            await tx.execute(update(Release).values(state="rolled_back"))
        await sessions_of(database, 20)
        assert (await run_now())["state"] == "running"
        async with database.begin() as tx:
            [run_id] = (await tx.execute(select(ScheduleRun.run_id).where(ScheduleRun.state == "running"))).scalars()
            await tx.execute(update(Run).where(Run.id == run_id).values(status="paused", owner=None, lease_until=None))
        live = await run_now()
        assert (live["reason"], str(run_id) in live["detail"]) == ("last_run_live", True)


def _release(promotion: int) -> dict[str, Any]:
    return {
        "id": "01KAJ3M7F5T2V8Q9X0C4D6E8GA",
        "project": "learnloop",
        "name": "live",
        "state": "running",
        "salt": b"0" * 16,
        "unit": "user",
        "promotion_id": promotion,
        "backend": "embedded",
        "model_name": "m",
        "step": 1,
        "share": 0.05,
        "rules": {},
        "baseline": {},
        "actor": "local",
    }


async def test_a_run_that_failed_or_learned_nothing_has_no_trial(
    data_dir: Path, database_url: str, database: Database, quick_looks: None
) -> None:
    async with _promoted(data_dir, database_url, held_out={2: [True]}) as client:
        await sessions_of(database, 20)
        schedule = await create(client)
        await client.post(f"/schedules/{schedule['id']}/run")
        ended = await _noticed(client, schedule["id"], lambda due_time: due_time["state"] == "done")
        assert (ended["reason"], ended["evaluation_id"]) == ("not_learned", None)
        after_run = (await client.get(f"/schedules/{schedule['id']}")).json()
        assert (after_run["trials"], after_run["expected_wrong_promotions"]) == (0, 0.0)


async def test_a_night_can_end_in_a_release(
    data_dir: Path, database_url: str, database: Database, quick_looks: None
) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 20)
        schedule = await create(client, then="release")
        await client.post(f"/schedules/{schedule['id']}/run")
        ended = await _noticed(client, schedule["id"], lambda due_time: due_time["state"] == "done")
        assert (ended["reason"], ended["evaluation_id"]) == (None, None)
        release = (await client.get(f"/releases/{ended['release_id']}")).raise_for_status().json()
        run = (await client.get(f"/runs/{ended['run_id']}")).json()
        assert release["candidate"] == f"learnloop/{run['model']['name']}@2"


async def test_a_trial_without_a_champion_is_refused_with_the_reason(
    data_dir: Path, database_url: str, database: Database, quick_looks: None
) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 20)
        schedule = await create(client)
        await client.delete(f"/promotions/{NAME}")
        await client.post(f"/schedules/{schedule['id']}/run")
        ended = await _noticed(client, schedule["id"], lambda due_time: due_time["state"] == "done")
        assert (ended["reason"], ended["started_from"]) == ("refused", None)
        assert "Nothing is promoted to learnloop/live yet" in ended["detail"]
        run = (await client.get(f"/runs/{ended['run_id']}")).json()
        assert run["model"]["base_model"] == "learnloop/tiny"


async def test_a_run_is_trained_with_the_prompt_of_the_champion(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with _promoted(data_dir, database_url) as client:
        for name in ("kind", "short"):
            stored = await client.post("/prompts", params={"name": name}, json={"parts": {"system": f"Be {name}."}})
            stored.raise_for_status()
        champion = {"step": 0, "as": "live", "prompt": "kind"}
        (await client.post("/models/learnloop/m/promote", json=champion)).raise_for_status()
        await sessions_of(database, 20)
        usual = await create(client, then="nothing")
        other = await create(client, then="nothing", name="other", run={**usual["run"], "prompt": "short"})
        for schedule, prompt in ((usual, "kind"), (other, "short")):
            await client.post(f"/schedules/{schedule['id']}/run")
            ended = await _noticed(client, schedule["id"], lambda due_time: due_time["state"] == "done")
            run = (await client.get(f"/runs/{ended['run_id']}")).json()
            assert run["request"]["prompt"]["name"] == prompt


async def test_a_paused_schedule_does_nothing_and_makes_nothing_up(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 20)
        schedule = await create(client, then="nothing")
        path = f"/schedules/{schedule['id']}"
        await make_due(database)
        for _ in range(2):
            paused = (await client.post(f"{path}/pause")).raise_for_status().json()
            assert (paused["paused"], paused["next_times"]) == (True, [])
        refused = await client.post(f"{path}/run")
        assert (refused.status_code, "is paused" in refused.json()["detail"]) == (409, True)
        resumed = (await client.post(f"{path}/resume")).json()
        assert resumed["next_times"] == schedule["next_times"]
        assert await _due_times(client, schedule["id"]) == []
        assert (await client.delete(path)).json()["name"] == "nightly"
        assert (await client.get(path)).status_code == 404


async def test_what_makes_no_schedule_is_refused(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await create(client)
        duplicate = await client.post("/schedules", json={"name": "nightly", "cron": "0 2 * * *", "run": RUN})
        assert (duplicate.status_code, "has a schedule 'nightly'" in duplicate.json()["detail"]) == (409, True)
        unnamed = {**RUN, "source": {"sessions": {}}}
        for more, loc, message in (
            ({"cron": "0 2 * *"}, ["cron"], "has 4 fields instead of 5"),
            ({"run": {}}, ["run"], "give source.sessions"),
            ({"run": {**RUN, "model": {"name": "m"}}}, ["run"], "leave out model.name"),
            ({"run": {**RUN, "backend": "local"}}, ["run", "backend"], "only embedded can do"),
            ({"run": {**RUN, "source": {"sessions": {"stars": 5}}}}, ["run", "source", "sessions", "stars"], "xtra"),
            ({"run": {**RUN, "environment": "email_search"}}, ["run", "source"], "for the environment agent"),
            ({"run": unnamed}, ["promoted_name"], "such as learnloop/live"),
            ({"then": "hope"}, ["then"], "trial"),
        ):
            body = {"name": "other", "cron": "0 2 * * *", "run": RUN, **more}
            refused = await client.post("/schedules", json=body)
            assert refused.status_code == 422, more
            [error] = refused.json()["errors"]
            assert (error["loc"], message in error["msg"]) == (["body", *loc], True), error
        assert (await create(client, name="other", run=unnamed, promoted_name="live"))["promoted_name"] == NAME


async def test_the_commands_say_what_the_api_says(
    data_dir: Path, database_url: str, database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(json.dumps(RUN))
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes", secret_key=SECRET)
    async with served(settings, ScriptedLoop()) as client:

        async def command(*words: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--url", str(client.base_url)])

        options = ["--name", "nightly", "--cron", "0 2 * * *", "--file", str(file), "--least-new-tasks", "3"]
        created = await command("schedules", "create", *options)
        assert (created.exit_code, created.stdout.count(" 02:00")) == (0, 3), created.output
        wrong = await command("schedules", "create", *options[:3], "0 2 * *", *options[4:])
        assert (wrong.exit_code, "has 4 fields instead of 5" in wrong.stderr) == (1, True)
        skipped = await command("schedules", "run", "nightly")
        assert (skipped.exit_code, "skipped (too_few_tasks)" in skipped.stdout) == (1, True)
        await sessions_of(database, 20)
        started = await command("schedules", "run", "nightly")
        assert (started.exit_code, "20 tasks of 20 users from the base model" in started.stdout) == (0, True)
        displayed = await command("schedules", "show", "nightly")
        assert "0; at most 0.00 wrong promotions" in displayed.stdout
        assert "skipped (too_few_tasks)" in displayed.stdout
        assert "paused" in (await command("schedules", "pause", "nightly")).stdout
        assert "paused" in (await command("schedules", "list")).stdout
        assert (await command("schedules", "resume", "nightly")).exit_code == 0
        unsure = await command("schedules", "delete", "nightly")
        assert (unsure.exit_code, "confirm with --yes" in unsure.stderr) == (1, True)
        assert (await command("schedules", "delete", "nightly", "--yes")).exit_code == 0
        gone = await command("schedules", "show", "nightly")
        assert (gone.exit_code, "no schedule 'nightly'" in gone.stderr) == (1, True)
        assert (await command("schedules", "list")).stdout == "no schedules\n"

        refused = await command("users", "delete", "user1")
        assert (refused.exit_code, "confirm with --yes" in refused.stderr) == (1, True)
        assert (await command("users", "delete", "nobody", "--yes")).stdout == "deleted: nothing\n"
        opened = await client.post("/sessions", json={"model": "learnloop/tiny", "user": "ann", "train": True})
        assert opened.status_code == 201
        assert (await command("users", "delete", "ann", "--yes")).stdout == "deleted: 1 sessions\n"


async def test_two_services_that_look_at_the_same_time_start_one_run(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 20)
        schedule = await create(client)
        await make_due(database, days=4)
        async with (
            _idle(data_dir / "a", database_url) as one,
            _idle(data_dir / "b", database_url) as other,
            httpx.AsyncClient() as http,
        ):
            schedulers = [scheduler_of(service, http) for service in (one, other, one, other)]
            await asyncio.gather(*(scheduler.look() for scheduler in schedulers))
        [night] = await _due_times(client, schedule["id"])  # of four days, one
        assert night["run_id"] is not None
        async with database() as tx:
            assert (await tx.execute(select(func.count()).where(Run.environment == "agent"))).scalar_one() == 1


async def test_one_that_looked_earlier_starts_nothing_any_more(
    data_dir: Path, database_url: str, database: Database
) -> None:
    """Services that look at different moments can take different times for the due one."""
    async with _promoted(data_dir, database_url) as client:
        await sessions_of(database, 20)
        created = await create(client)
        await make_due(database, days=4)
        async with _idle(data_dir / "a", database_url) as service, httpx.AsyncClient() as http:
            scheduler = scheduler_of(service, http)
            schedule = await scheduler.store.get(created["id"])
            due_at = latest_time("0 2 * * *", await scheduler.now())
            await scheduler.start(schedule, due_at)
            async with database.begin() as tx:
                await tx.execute(update(Run).values(status="cancelled"))
            with pytest.raises(DueTimeTaken):
                await scheduler.start(schedule, due_at - timedelta(days=1))
            assert len(await _due_times(client, created["id"])) == 1

            # Nor do two that are asked for at the same time start beside each other.
            now, schedule = await scheduler.now(), await scheduler.store.get(created["id"])
            await sessions_of(database, 20, 2, days_ago=0)
            late = [now + timedelta(seconds=seconds) for seconds in (60, 120)]
            await asyncio.gather(*(scheduler.start(schedule, due_time) for due_time in late), return_exceptions=True)
            async with database() as tx:
                live = select(func.count()).where(Run.environment == "agent", Run.status != "cancelled")
                assert (await tx.execute(live)).scalar_one() == 1


async def test_a_due_time_makes_one_run_wherever_a_process_dies(
    data_dir: Path, database_url: str, database: Database
) -> None:
    """A process dies at every statement in turn. The next look starts the same run, on the same tasks."""
    async with _promoted(data_dir, database_url) as client:
        for user in {split_of(hashed(f"user{n}")): f"user{n}" for n in range(20)}.values():
            await session_of(database, user, f"A question of {user}?")
        await create(client, run={**RUN, "source": {"sessions": {"model": "live", "limit": 20}}})
        engine = make_engine(parse_url(database_url))
        crashes, dying = Crashes(engine), make_database(engine)
        async with _idle(data_dir / "a", database_url) as service, httpx.AsyncClient() as http:
            mortal = replace(service, database=dying, store=RunStore(dying), queries=RunQueries(dying))
            drawn, deaths, is_through = set[Any](), 0, False
            while not is_through:
                await make_due(database)
                try:
                    with crashes.after(deaths):
                        await scheduler_of(mortal, http).look()
                    is_through = True
                except Died:
                    deaths += 1
                async with database() as tx:
                    rows = (await tx.execute(select(ScheduleRun))).scalars().all()
                    runs = (await tx.execute(select(Run).where(Run.environment == "agent"))).scalars().all()
                assert [row.run_id for row in rows] == [run.id for run in runs], deaths
                if runs:  # its death after the commit changed nothing
                    drawn.add(runs[0].request["environment"]["config"]["scenarios"]["sha256"])
                    await _forget_runs(database)
        assert deaths > 10
        assert len(drawn) == 1
        await engine.dispose()


async def _forget_runs(database: Database) -> None:
    async with database.begin() as tx:
        for row in (await tx.execute(select(ScheduleRun))).scalars():
            await tx.delete(row)
        for run in (await tx.execute(select(Run).where(Run.environment == "agent"))).scalars():
            await tx.delete(run)


@asynccontextmanager
async def _idle(data_dir: Path, database_url: str) -> AsyncIterator[HandlerResources]:
    """A service that drives no runs."""
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes", max_concurrent_runs=0)
    backend = ScriptedBackend()
    async with open_service(settings, connect=backend.connect, learn=ScriptedLoop()) as service:
        yield service


async def _add_due(database: Database, project: str, count: int, days: int) -> None:
    """Add schedules of a project that have been due for that many days."""
    due = datetime.now(UTC) - timedelta(days=days)
    async with database.begin() as tx:
        for number in range(count):
            same: Json = {
                "cron": "0 2 * * *",
                "run": RUN,
                "promoted_name": "live",
                "then": "nothing",
                "actor": "a test",
            }
            id = f"{project}-{number}"
            tx.add(
                Schedule(
                    id=id,
                    project=project,
                    name=id,
                    least_new_tasks=3,
                    window_days=None,
                    next_due_at=due,
                    **same,
                )
            )


async def test_schedules_of_many_due_times_let_other_projects_have_their_turn(
    data_dir: Path, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that has no time left still deals with the first schedule of every project."""
    await _add_due(database, "many", 300, days=3)
    await _add_due(database, "one", 1, days=1)
    monkeypatch.setattr("learnloop_service.app.schedules.scheduler.LOOK_S", 0.0)
    async with _idle(data_dir, database_url) as service, httpx.AsyncClient() as http:
        scheduler = scheduler_of(service, http)
        assert [schedule.project for schedule in (await scheduler.store.due())[:3]] == ["many", "one", "many"]
        await scheduler.look()
    async with database() as tx:
        dealt_with = (await tx.execute(select(ScheduleRun.schedule_id))).scalars().all()
    assert sorted(id.partition("-")[0] for id in dealt_with) == ["many", "one"]


async def test_a_project_has_a_limited_number_of_schedules(
    data_dir: Path, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.schedules.store.MAX_SCHEDULES", 2)
    await _add_due(database, "another", 2, days=0)
    async with _promoted(data_dir, database_url) as client:
        bodies = [{"name": f"n{number}", "cron": "0 2 * * *", "run": RUN} for number in range(4)]
        replies = await asyncio.gather(*(client.post("/schedules", json=body) for body in bodies))
        assert sorted(reply.status_code for reply in replies) == [201, 201, 409, 409]
        refused = next(reply for reply in replies if reply.status_code == 409).json()
        assert refused["detail"] == "Project learnloop has 2 schedules; delete one first."
    assert len(await ScheduleStore(database).listed(project=None, name=None, before=None, limit=9)) == 4
