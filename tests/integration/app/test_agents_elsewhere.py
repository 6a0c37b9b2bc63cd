"""Runs over agents behind HTTP and over commands that fetch their tasks: a real service, sockets and processes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from learnloop_service.app.security.webhook_signing import new_secret
from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered, until
from tests.fakes.forked_learnloop import learnloop
from tests.fakes.hostile_provider import Answer, bomb, gigabyte, hostile_provider, saying
from tests.fakes.runner import Behaviour, ask_model, runner, send_outcome
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.own_agent_runs import by_seed, get, reachable, request
from tests.integration.app.served import run_with, served, settings_for
from tests.opened_database import execute


@asynccontextmanager
async def service(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A service that agents can reach, and its backend, whose model says yes to every second seed."""
    async with scripted_chat(by_seed) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(reachable(data_dir, database_url, **more), learn_loop, backend) as client:  # type: ignore[arg-type]
            yield client, backend


async def started(client: httpx.AsyncClient, how: Any, **more: Any) -> str:
    run_id: str = (await client.post("/learn-loop", json=request(how, **more))).raise_for_status().json()["run_id"]
    return run_id


async def finished(client: httpx.AsyncClient, run_id: str) -> list[Json]:
    """The training rollouts of the run, which has completed."""
    run = await run_with(client, run_id, "completed", "failed", "paused")
    assert run["status"] == "completed", run
    rows: list[Json] = (await get(client, f"/runs/{run_id}/trajectories?limit=200&kind=train"))["items"]
    return rows


async def at_once(document: Mapping[str, Json]) -> tuple[int, Json]:
    """Does the task while the service waits."""
    answer = await ask_model(document["session"], document["task"]["question"])
    return 200, {"reward": float(answer == "yes"), "facts": _facts(answer)}


def _facts(answer: str) -> dict[str, bool]:
    """What a rollout reached: a database sorts the shorter name first."""
    return dict.fromkeys(("understood", "sure"), answer == "yes")


def later(tasks: set[asyncio.Task[Any]]) -> Behaviour:
    """Accepts the task, and sends the outcome to the session."""

    async def work(document: Mapping[str, Json]) -> None:
        answer = await ask_model(document["session"], document["task"]["question"])
        for _ in range(2):  # the same outcome again changes nothing
            parts = {"right": float(answer == "yes"), "length": 0.3}
            response = await send_outcome(document["session"], {"parts": parts, "facts": _facts(answer)})
            assert response.status_code == 200, response.text

    async def accept(document: Mapping[str, Json]) -> tuple[int, Json]:
        tasks.add(asyncio.ensure_future(work(document)))
        return 202, ""

    return accept


@pytest.mark.parametrize("how", ["at once", "later"])
async def test_an_agent_behind_http_is_trained(data_dir: Path, database_url: str, how: str) -> None:
    working, secret = set[asyncio.Task[Any]](), new_secret()
    async with (
        runner(at_once if how == "at once" else later(working)) as it,
        service(data_dir, database_url) as (client, backend),
    ):
        run_id = await started(client, {"push": {"url": it.url, "secret": secret}})
        rows = await finished(client, run_id)
        assert len(rows) == 8
        assert {row["reward"] for row in rows} == ({0.0, 1.0} if how == "at once" else {0.3, 1.3})
        assert rows[0]["outcome"]["facts"] in ([["understood", x], ["sure", x]] for x in (True, False))
        failing = await get(client, f"/failures?run={run_id}&split=train")
        assert [pattern["id"] for pattern in failing["patterns"]] == ["reported/understood"]
        assert {(row["turns"], row["completion_tokens"]) for row in rows} == {(1, 10)}
        trajectory = await get(client, f"/trajectories/{rows[0]['id']}")
        assert [message["role"] for message in trajectory["messages"]] == ["user", "assistant"]
        [policy] = backend.policies.values()
        [training_request] = policy.requests
        assert [len(group.trajectories) for group in training_request.groups] == [4, 4]
        document, headers, content = it.received[0]
        Webhook(secret).verify(content, dict(headers))
        assert (document["attempt"], document["run_id"], document["max_turns"]) == (1, run_id, 20)
        assert secret not in str(await get(client, f"/runs/{run_id}"))
        assert (await get(client, f"/runs/{run_id}/verify"))["ok"]
    for task in working:
        task.result()


async def hang(document: Mapping[str, Json]) -> tuple[int, Json]:
    await asyncio.Event().wait()
    raise AssertionError


async def break_down(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 500, "out of memory"


async def lie(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 200, '{"reward": NaN}'


async def boast(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 200, {"reward": 1e200}


async def boast_in_parts(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 200, {"parts": {"right": 1e308, "short": 1e308}}


async def talk(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 200, "<html>"


async def refuse(document: Mapping[str, Json]) -> tuple[int, Json]:
    return 404, "no such agent"


PATIENCE_S = 15
"""For the one that hangs; long enough for a busy machine to have the outcomes of all others."""
WRONG: Sequence[tuple[Behaviour, str, int]] = (
    (hang, f"no outcome within {PATIENCE_S} s", 1),
    (break_down, "the runner answered 500: 'out of memory'", 3),
    (lie, "outcome is invalid: reward is a finite number from -1e+09 to 1e+09, not nan", 3),
    (boast, "outcome is invalid: reward is a finite number from -1e+09 to 1e+09, not 1e+200", 3),
    (boast_in_parts, "outcome is invalid: the part 'right' is a finite number", 3),
    (talk, "answer is no outcome", 3),
    (refuse, "the runner answered 404", 1),
)
"""What a runner does, what is said of it, and how often it is posted the task."""


async def test_a_runner_that_does_wrong_fails_that_rollout_alone(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.agent_dispatch.DELAYS_S", (0.0, 0.0))
    posts = dict[str, int]()

    async def behave(document: Mapping[str, Json]) -> tuple[int, Json]:
        id = document["session"]["id"]
        if document["split"] != "train":
            return await at_once(document)
        posts[id] = posts.get(id, 0) + 1
        number = list(posts).index(id)
        return await (WRONG[number][0] if number < len(WRONG) else at_once)(document)

    async with runner(behave) as it, service(data_dir, database_url) as (client, _):
        rows = await finished(client, await started(client, {"push": {"url": it.url}}, rollout_timeout_s=PATIENCE_S))
    errors = [row["error"] for row in rows if row["error"]]
    assert (len(rows), len(errors)) == (8, len(WRONG))
    for _, message, _ in WRONG:
        assert len([error for error in errors if message in error]) == 1
    assert {row["reward"] for row in rows if row["error"]} == {None}
    assert list(posts.values()) == [*(times for _, _, times in WRONG), 1]
    kinds = {row["error"]: row["failure"] for row in rows if row["error"]}
    assert [kind for error, kind in kinds.items() if "answered 500" in error] == ["agent_lost"]
    assert sorted(kinds.values()) == ["agent"] * 5 + ["agent_lost", "timeout"]


async def test_a_run_and_its_verification_say_which_rollouts_were_lost(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.agent_dispatch.DELAYS_S", (0.0, 0.0))
    down = set[str]()

    async def behave(document: Mapping[str, Json]) -> tuple[int, Json]:
        id = document["session"]["id"]
        if document["split"] == "train" and not down:
            down.add(id)
        return await (break_down if id in down else at_once)(document)

    async with runner(behave) as it, service(data_dir, database_url) as (client, _):
        run_id = await started(client, {"push": {"url": it.url}})
        [lost] = [row for row in await finished(client, run_id) if row["error"]]
        run = await get(client, f"/runs/{run_id}")
        verified = await get(client, f"/runs/{run_id}/verify")
    assert [iteration["lost_rollouts"] for iteration in run["iterations"]] == [{}, {"agent_lost": 1}]
    [warning] = [text for text in run["warnings"] if "lost" in text]
    assert "Rollouts were lost for reasons that are not the agent's (agent_lost: 1)" in warning
    assert (verified["ok"], verified["lost_rollouts"]) == (True, {"agent_lost": 1})
    assert [rollout["trajectory_id"] for rollout in verified["lost"]] == [lost["id"]]
    assert "out of memory" in verified["lost"][0]["error"]


async def test_a_runner_that_fails_once_is_asked_again_and_nothing_is_sampled_twice(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.agent_dispatch.DELAYS_S", (0.0, 0.0))
    answers = dict[str, list[str]]()

    async def behave(document: Mapping[str, Json]) -> tuple[int, Json]:
        answer = await ask_model(document["session"], document["task"]["question"])
        answers.setdefault(document["session"]["id"], []).append(answer)
        return (503, "later") if document["attempt"] == 1 else (200, {"reward": float(answer == "yes")})

    async with runner(behave) as it, service(data_dir, database_url) as (client, _):
        rows = await finished(client, await started(client, {"push": {"url": it.url}}))
    assert not [row["error"] for row in rows if row["error"]]
    assert {len(texts) for texts in answers.values()} == {2}
    assert all(first == second for first, second in answers.values())
    assert {row["turns"] for row in rows} == {1}


async def test_who_takes_the_run_over_goes_on_with_the_same_session(data_dir: Path, database_url: str) -> None:
    answers = dict[str, list[str]]()
    has_asked = asyncio.Event()

    async def behave(document: Mapping[str, Json]) -> tuple[int, Json]:
        answer = await ask_model(document["session"], document["task"]["question"])
        answers.setdefault(document["session"]["id"], []).append(answer)
        if not has_asked.is_set():
            has_asked.set()
            return await hang(document)
        return 200, {"reward": float(answer == "yes")}

    async with runner(behave) as it, scripted_chat(by_seed) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(reachable(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            run_id = await started(client, {"push": {"url": it.url}}, concurrency=1, iterations=1)
            await has_asked.wait()
        async with served(reachable(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            await finished(client, run_id)
            first = it.received[0][0]["session"]["id"]
            session = await get(client, f"/sessions/{first}")
    assert (session["calls"], session["attempt"]) == (1, 2)
    assert len(answers[first]) == 2
    assert len(set(answers[first])) == 1
    assert {len(texts) for id, texts in answers.items() if id != first} == {1}


@pytest.mark.parametrize("url", ["http://①②⑦.0.0.1/", "http://xn--/", "http://[①]/", "ftp://8.8.8.8/", "nowhere"])
async def test_scenarios_at_an_unusable_url_are_refused(data_dir: Path, database_url: str, url: str) -> None:
    async with served(settings_for(data_dir, database_url), learn_loop, ScriptedBackend()) as client:  # type: ignore[arg-type]
        body = request({"pull": {}})
        body["environment"]["config"]["scenarios"] = {"url": url}
        refused = await client.post("/learn-loop", json=body)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["loc"][-2:] == ["scenarios", "url"]


async def test_a_runner_on_a_private_address_is_refused(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    async with served(settings, learn_loop, ScriptedBackend()) as client:  # type: ignore[arg-type]
        for how, field in (
            ({"push": {"url": "http://169.254.169.254/latest"}}, "url"),
            ({"push": {"url": "https://93.184.216.34/", "secret": "hunter2"}}, "secret"),
        ):
            refused = await client.post("/learn-loop", json=request(how))
            assert refused.status_code == 422
            assert refused.json()["errors"][0]["loc"][-1] == field


@pytest.mark.parametrize(
    ("answer", "said"),
    [(bomb, "the server's answer is compressed"), (gigabyte, "the server's answer has more than 2,000,000 bytes")],
)
async def test_what_a_runner_answers_is_bounded(data_dir: Path, database_url: str, answer: Answer, said: str) -> None:
    async with hostile_provider(answer) as it, service(data_dir, database_url) as (client, _):
        run = await run_with(client, await started(client, {"push": {"url": it.url}}), "failed")
        assert it.accepted_bytes < len(it.heads) * 32 * 2**20
    assert f"the runner's answer cannot be read: {said}" in run["error"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (bomb, "the server's answer is compressed"),
        (gigabyte, "the server's answer has more than 4,000,000 bytes (LEARNLOOP_MAX_GRAPH_BYTES)"),
        (saying(b"[" + b"[]," * 1_000_000 + b"0]"), "has more than 1,000,000 JSON values"),
    ],
)
async def test_scenarios_that_are_fetched_are_bounded(
    data_dir: Path, database_url: str, answer: Answer, said: str
) -> None:
    async with (
        hostile_provider(answer) as it,
        service(data_dir, database_url, max_graph_bytes=4_000_000) as (client, _),
    ):
        body = request({"pull": {}})
        body["environment"]["config"]["scenarios"] = {"url": it.url}
        refused = await client.post("/learn-loop", json=body)
        assert it.accepted_bytes < 32 * 2**20
    assert refused.status_code == 422
    assert said in refused.text


SCRIPT = """
import json, os, sys, urllib.request
task = json.loads(os.environ["LEARNLOOP_TASK"])
def ask(text):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    sent = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(sent))["choices"][0]["message"]["content"]
said = ask(task["question"])
"""
SCORES = SCRIPT + 'print("thinking")\nprint(json.dumps({"reward": float(said == "yes")}))\n'


@asynccontextmanager
async def agent_run(
    client: httpx.AsyncClient, script: str, *options: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`learnloop agent run` with a Python script as the command; `variables` are its environment (None: ours)."""
    url = str(client.base_url).rstrip("/")
    command = learnloop("agent", "run", "--url", url, *options)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--", sys.executable, "-S", "-c", script),  # the standard library is enough for it
        stderr=asyncio.subprocess.DEVNULL,
        env=variables,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_a_command_that_fetches_its_tasks_is_trained_and_evaluated(data_dir: Path, database_url: str) -> None:
    clock = time.monotonic()
    async with service(data_dir, database_url) as (client, _), agent_run(client, SCORES, "--concurrency", "2"):
        run_id = await started(client, {"pull": {}}, concurrency=8)
        rows = await finished(client, run_id)
        worked_s = sum(row["seconds"] for row in rows)
        assert 0 < worked_s < 2 * (time.monotonic() - clock)  # two at a time, without what the others wait for them
        assert not [row["error"] for row in rows if row["error"]]
        assert {row["reward"] for row in rows} == {0.0, 1.0}

        refused = await client.post("/ask", json={"run_id": run_id, "input": {"question": "Now?"}})
        assert refused.status_code == 422
        assert "open a session" in refused.text

        posted = await client.post("/evaluations", json={"run_id": run_id, "scenarios": 1})
        path = f"/evaluations/{posted.raise_for_status().json()['evaluation_id']}"
        evaluation = await answered(
            lambda: get(client, path), lambda document: document["status"] in ("completed", "failed")
        )
        assert evaluation["status"] == "completed", evaluation
        assert {row["turns"] for row in (await get(client, f"{path}/trajectories"))["items"]} == {1}


async def test_a_command_sees_no_secret_of_the_process_that_starts_it(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    secrets = ("LEARNLOOP_API_KEY", "LEARNLOOP_OPERATOR_KEY", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "ANY_OTHER")
    ours = {"PATH": os.environ["PATH"], "NAMED": "ours", **dict.fromkeys(secrets, "canary")}
    sees = SCORES + 'json.dump(dict(os.environ), open(os.environ["SEEN"], "w"))\n'
    options = ("--env", "NAMED", "--env", f"SEEN={tmp_path / 'seen'}")
    async with service(data_dir, database_url) as (client, _), agent_run(client, sees, *options, variables=ours):
        await finished(client, await started(client, {"pull": {}}))
    environment = json.loads((tmp_path / "seen").read_text())
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY", "LEARNLOOP_TASK", "LEARNLOOP_SESSION", "PATH"} <= environment.keys()
    assert environment["NAMED"] == "ours"
    assert not environment.keys() & set(secrets)
    assert "canary" not in environment.values()


async def test_a_killed_agent_run_loses_nothing_that_was_answered(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    """The first one is killed in the middle of its task; the next one is given the same session, and its answers."""
    answer_file = tmp_path / "said"
    stuck = (
        f"{SCRIPT}import pathlib, time\npathlib.Path({str(answer_file)!r}).write_text(said)\n"
        "parent = os.getppid()\nwhile os.getppid() == parent:\n    time.sleep(0.1)\n"
    )
    async with service(data_dir, database_url) as (client, _):
        async with agent_run(client, stuck) as first:
            run_id = await started(client, {"pull": {}}, concurrency=1, groups_per_iteration=1, rollouts_per_group=2)
            await until(answer_file.exists)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        [row] = (await get(client, "/sessions?status=open"))["items"]
        await lapse(database_url)
        async with agent_run(client, SCORES):
            await finished(client, run_id)
        session = await get(client, f"/sessions/{row['id']}")
        assert (session["calls"], session["outcome"]["reward"]) == (1, float(answer_file.read_text() == "yes"))
        assert len((await get(client, f"/sessions/{row['id']}/calls"))["items"]) == 1


async def lapse(database_url: str) -> None:
    """The killed one's lease is over."""

    await execute(database_url, "UPDATE agent_task SET lease_until = clock_timestamp() - interval '1 second'")


async def test_a_runner_that_breaks_on_a_reply_that_was_cut_off_has_a_bad_rollout(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.agent_dispatch.DELAYS_S", (0.0, 0.0))

    async def half_cut_off(chat_request: Mapping[str, Json]) -> Reply:
        return Reply(content="0.", cut_off=True) if chat_request["seed"] % 2 else Reply(content="0.5")

    async def behave(document: Mapping[str, Json]) -> tuple[int, Json]:
        answer = await ask_model(document["session"], document["task"]["question"])
        return (
            (200, {"reward": float(answer)}) if answer == "0.5" else (500, "Traceback (most recent call last):\nE: cut")
        )

    async with runner(behave) as it, scripted_chat(half_cut_off) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(reachable(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            rows = await finished(client, await started(client, {"push": {"url": it.url}}))
    assert {(row["reward"], row["error"], row["outcome"]["finish"]) for row in rows} == {
        (0.5, None, "reported"),
        (0.0, None, "malformed"),
    }


@pytest.mark.long
async def test_a_command_that_fails_has_no_outcome(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as (client, _), agent_run(client, SCRIPT + "sys.exit('no disk left')"):
        run = await run_with(client, await started(client, {"pull": {}}), "completed", "failed")
    assert run["status"] == "failed"
    assert "the command ended with status 1: no disk left" in run["error"]


async def test_sigterm_gives_the_tasks_back(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as (client, _):
        run_id = await started(client, {"pull": {}}, concurrency=1)
        async with agent_run(client, SCRIPT + "import time\ntime.sleep(600)") as process:
            [row] = await answered(lambda: _with_calls(client), bool)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        claimed = await client.post("/sessions/claims", json={"run_id": run_id})
        assert (claimed.json()["session"]["id"], claimed.json()["attempt"]) == (row["id"], 2)


async def _with_calls(client: httpx.AsyncClient) -> list[Json]:
    return [row for row in (await get(client, "/sessions"))["items"] if row["calls"]]
