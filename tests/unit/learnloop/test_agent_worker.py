"""What a command that does a task has to say of it."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop import agent_worker
from learnloop.agent_worker import (
    AgentWorker,
    CannotWork,
    CommandFailed,
    _end_process,
    _result,
    outcome_of,
    passed_on,
    variables,
)

SEPARATORS = "\u2028\u2029\u0085"
"""Characters that end a line for `str.splitlines`, and for no reader of JSON Lines."""
RANGE = "a finite number from -1e+09 to 1e+09"


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [
        ('thinking\n{"reward": 1}\n\n', {"reward": 1}),
        ('{"parts": {"right": 0.5}}', {"parts": {"right": 0.5}}),
        ('{"answer": 42}', {"output": '{"answer": 42}'}),
        ("It is 42.", {"output": "It is 42."}),
        ("42", {"output": "42"}),
        ("working\r\n42\r\n", {"output": "42"}),
        *(
            (f'{{"reward": 1, "reason": "one{mark}two"}}', {"reward": 1, "reason": f"one{mark}two"})
            for mark in SEPARATORS
        ),
        ("\n \n", {"reward": None, "reason": "the command printed nothing"}),
        (" ", {"reward": None, "reason": "the command printed nothing"}),
        ('{"reward": NaN}', {"reward": None, "reason": f"the command printed reward is {RANGE}, not nan"}),
    ],
)
def test_the_last_line_is_the_outcome(printed: str, outcome: Any) -> None:
    assert outcome_of(0, printed, "") == outcome


@pytest.mark.parametrize(("status", "how"), [(3, "status 3"), (-9, "signal SIGKILL")])
def test_a_command_that_fails_has_none_whatever_it_printed(status: int, how: str) -> None:
    with pytest.raises(CommandFailed, match=f"the command ended with {how}: no disk left"):
        outcome_of(status, '{"reward": 1}', "no disk left\n")


def test_the_end_of_a_long_complaint_is_kept() -> None:
    with pytest.raises(CommandFailed) as failed:
        outcome_of(1, "", "x" * 10_000 + "the cause")
    reason = str(failed.value)
    assert reason.endswith("the cause")
    assert len(reason) < 2_100


def test_a_command_finds_its_model_under_the_names_that_clients_read() -> None:
    session = {"id": "S", "base_url": "http://a/sessions/S/v1", "api_key": "las_k", "model": "p/m@1"}
    environment = variables({"session": session, "task": {"a": "ü"}, "attempt": 2, "deadline": "soon"})
    assert environment["OPENAI_BASE_URL"] == "http://a/sessions/S/v1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://a/sessions/S"
    assert environment["OPENAI_API_KEY"] == "las_k"
    assert environment["ANTHROPIC_API_KEY"] == "las_k"
    assert environment["OPENAI_MODEL"] == "p/m@1"
    assert environment["LEARNLOOP_TASK"] == '{"a": "ü"}'
    assert environment["LEARNLOOP_ATTEMPT"] == "2"


def test_a_command_inherits_what_it_needs_to_run_and_what_is_named() -> None:
    ours = {"PATH": "/bin", "LANG": "C", "LEARNLOOP_API_KEY": "ll_k", "AWS_SECRET_ACCESS_KEY": "s", "A": "1", "B": "2"}
    assert passed_on([], ours) == {"PATH": "/bin", "LANG": "C"}
    assert passed_on(["A", "B=3", "C=x=y", "LANG="], ours) == {
        "PATH": "/bin", "LANG": "", "A": "1", "B": "3", "C": "x=y"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "message"),
    [("D", "--env D: the environment has no D; set it"), ("=1", "--env =1: expected NAME or NAME=VALUE")],
)
def test_a_variable_that_cannot_be_passed_on_is_named(entry: str, message: str) -> None:
    with pytest.raises(CannotWork, match=message):
        passed_on([entry], {"A": "1"})


@pytest.mark.parametrize("is_away", [True, False])
async def test_that_the_service_was_away_is_no_fault_of_the_command(
    is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop.agent_worker._PAUSE_S", 0.0)
    heard: list[Any] = []

    def service(request: httpx.Request) -> httpx.Response:
        heard.append(json.loads(request.content))
        if is_away and len(heard) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(204)

    worker = AgentWorker("http://service", ["agent"], {}, None, 1, "a", False)
    async with httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(service)) as worker._http:
        await worker._give_back("S", 2, "no connection")
    assert heard[-1] == ({"attempt": 2} if is_away else {"attempt": 2, "reason": "no connection"})


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe that nothing is written to: `cat` of it runs until the test ends."""
    path = tmp_path / "held"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


async def _worked(script: str, **environment: str) -> Any:
    worker = AgentWorker("http://127.0.0.1:9", ["/bin/sh", "-c", script], environment, None, 1, "w", True)
    command = await worker._start_command({"LEARNLOOP_TASK": "{}", "LEARNLOOP_SESSION": "1"})
    try:
        async with asyncio.timeout(60):
            return await _result(command)
    finally:
        await _end_process(command)


LEFT_RUNNING = {
    "a child": "cat $HELD &",
    "a child of a child": "(cat $HELD & cat $HELD) &",
    "one in a session of its own": "setsid cat $HELD &",
    "one that ignores hangups": "nohup cat $HELD &",
    "one that holds stderr only": "cat $HELD >/dev/null &",
}


@pytest.mark.parametrize("background", LEFT_RUNNING.values(), ids=LEFT_RUNNING)
@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("""echo '{"reward": 1}'""", {"reward": 1}),
        ("echo It is 42.", {"output": "It is 42."}),
        ("true", {"reward": None, "reason": "the command printed nothing"}),
        ("""head -c 3000000 /dev/zero | tr '\\0' x; echo; echo '{"reward": 1}'""", {"reward": 1}),
    ],
    ids=["a reward", "an output", "nothing", "much before it"],
)
async def test_a_command_ends_when_it_ends_whatever_it_left_running(
    background: str, command: str, outcome: Any, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_worker, "_FLUSH_S", 0.05)
    environment = {"PATH": os.environ["PATH"], "HELD": str(pipe)}
    assert await _worked(f"{background} {command}", **environment) == outcome


async def test_the_error_of_a_command_is_read_whatever_it_left_running(
    pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_worker, "_FLUSH_S", 0.05)
    with pytest.raises(CommandFailed, match="status 3: no disk left"):
        await _worked("cat $HELD & echo no disk left >&2; exit 3", PATH=os.environ["PATH"], HELD=str(pipe))


async def test_an_outcome_that_another_process_passes_on_is_read(tmp_path: Path) -> None:
    script = """mkfifo p; sed s/0/1/ <p & exec >p; echo working; echo '{"reward": 0}'"""
    assert await _worked(f"cd {tmp_path}; {script}", PATH=os.environ["PATH"]) == {"reward": 1}
