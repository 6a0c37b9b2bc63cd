"""`learnloop runs pause`, `resume`, `retry`, `fork`, `delete`, `events` and `watch` on a running service."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conditions import until
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.run_commands import run_command
from tests.integration.app.served import run_with, served, settings_for


@pytest.fixture
def loop() -> ScriptedLoop:
    return ScriptedLoop()


@pytest.fixture
async def client(data_dir: Path, database_url: str, loop: ScriptedLoop) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(data_dir, database_url), loop) as client:
        yield client


async def _started(client: httpx.AsyncClient, **body: Any) -> str:
    return str((await client.post("/learn-loop", json={"iterations": 2, **body})).json()["run_id"])


async def test_a_run_is_paused_watched_and_resumed(client: httpx.AsyncClient, loop: ScriptedLoop) -> None:
    loop.gates[1] = threading.Event()
    run_id = await _started(client)
    await until(loop.has_entered(1).is_set)
    assert (await run_command(client, "pause", run_id)).stdout == f"run {run_id} is paused\n"
    watching = asyncio.create_task(run_command(client, "watch", run_id))
    loop.gates[1].set()
    assert (await run_command(client, "resume", run_id)).stdout == f"run {run_id} is queued\n"
    assert (await watching).exit_code == 0
    refused = await run_command(client, "retry", run_id)
    assert (refused.exit_code, "Cannot retry" in refused.stderr) == (1, True)


async def test_a_run_is_named_tagged_and_starred(client: httpx.AsyncClient) -> None:
    run_id = await _started(client)
    await run_with(client, run_id, "completed")
    change = ("--name", "lower rate", "--tag", "a", "--tag", "b", "--note", "why", "--star")
    assert (await run_command(client, "edit", run_id, *change)).stdout == f"run {run_id} is edited\n"
    refused = await run_command(client, "edit", run_id, "--untag", "c")
    assert (refused.exit_code, refused.stderr) == (1, "learnloop: The run has no tag 'c'; its tags are: a, b.\n")
    assert (await run_command(client, "edit", run_id, "--untag", "a", "--tag", "c", "--no-star")).exit_code == 0
    run = (await client.get(f"/runs/{run_id}")).json()
    edited = {name: run[name] for name in ("name", "tags", "notes", "starred")}
    assert edited == {"name": "lower rate", "tags": ["b", "c"], "notes": "why", "starred": False}
    assert "  lower rate [b, c]: " in (await run_command(client, "list", "--tag", "c", "--sort", "gain")).stdout
    assert (await run_command(client, "list", "--starred")).stdout == "no runs\n"


async def test_watch_says_why_a_run_waits(client: httpx.AsyncClient, loop: ScriptedLoop) -> None:
    loop.gates[0] = threading.Event()
    await _started(client)
    waiting = await _started(client)
    await until(loop.has_entered(0).is_set)
    process = await asyncio.create_subprocess_exec(
        *learnloop("runs", "watch", waiting, "--url", str(client.base_url)),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    expected = f"run {waiting} is queued: It is next and starts when a worker is free: 1 run in progress.\n"
    async with asyncio.timeout(60):
        while (line := (await process.stderr.readline()).decode()) != expected:
            assert line, "it ended without saying why the run waits"
    loop.gates[0].set()
    await process.communicate()
    assert process.returncode == 0


async def test_a_failed_run_is_retried_and_a_finished_one_forked_and_deleted(
    client: httpx.AsyncClient, loop: ScriptedLoop
) -> None:
    loop.fail_at = 1
    run_id = await _started(client)
    await run_with(client, run_id, "failed")
    loop.fail_at = None
    assert (await run_command(client, "retry", run_id)).exit_code == 0
    await run_with(client, run_id, "completed")
    options = ("--checkpoint", "1", "--name", "other", "--set", "iterations=1", "--set", "evaluation.every=2", "--json")
    forked = await run_command(client, "fork", run_id, *options)
    fork = (await client.get(f"/runs/{json.loads(forked.stdout)['run_id']}")).json()
    assert (fork["parent"]["step"], fork["model"]["name"], fork["request"]["iterations"]) == (1, "other", 1)
    assert fork["request"]["evaluation"]["every"] == 2
    assert "must look like" in (await run_command(client, "fork", run_id, "--set", "iterations")).stderr
    assert (await run_command(client, "delete", run_id)).stdout == f"run {run_id} is deleted\n"
    assert (await client.get(f"/runs/{run_id}")).status_code == 404
    assert (await run_command(client, "delete", run_id)).exit_code == 1


async def test_events_are_lines_and_can_be_followed_to_the_end(client: httpx.AsyncClient, loop: ScriptedLoop) -> None:
    loop.gates[2] = threading.Event()
    run_id = await _started(client)
    await until(loop.has_entered(2).is_set)
    following = asyncio.create_task(run_command(client, "events", run_id, "--follow", "--json"))
    now = (await run_command(client, "events", run_id)).stdout.splitlines()
    assert [line.split()[4] for line in now] == [
        "run.created",
        "run.started",
        "iteration.completed",
        "iteration.completed",
    ]
    loop.gates[2].set()
    followed = [json.loads(line) for line in (await following).stdout.splitlines()]
    assert [event["seq"] for event in followed] == list(range(1, 7))
    assert followed[-1]["type"] == "run.completed"
    assert "There is no run" in (await run_command(client, "events", "none", "--follow")).stderr
