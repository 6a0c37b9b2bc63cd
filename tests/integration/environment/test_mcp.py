"""Rollouts with the tools of MCP servers, which are real ones, good and bad."""

import asyncio
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import Environment
from learnloop_service.environment.mcp.config import HttpServer
from learnloop_service.environment.mcp.session import tools_of
from learnloop_service.environment.registry import build
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.fork import Fork, ReplayDiffers
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import RolloutLimits, replay, rollout
from learnloop_service.training.types import Rollout
from tests.conditions import until
from tests.fakes import mcp_server
from tests.fakes.hostile_provider import (
    Answer,
    HostileProvider,
    bomb,
    drip,
    endless,
    endless_events,
    gigabyte,
    hostile_provider,
    saying,
    silent_events,
)
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.integration.environment.mcp_answers import NAMES_ITS_TOOLS
from tests.integration.training.scripted_replies import in_turn

COMMAND = [sys.executable, str(Path(mcp_server.__file__))]
NAME = shlex.join(COMMAND)
TIME_SERVER = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "Europe/Berlin"]
DONE = Reply(content="the answer")
MOST_TAKEN = 64 * 2**20
"""Bytes of two answers. We take 8 MB of each; the rest is in the buffers of two sockets."""


def access(**settings: Any) -> EnvironmentAccess:
    return EnvironmentAccess(load_settings(environment_commands=(NAME, shlex.join(TIME_SERVER)), **settings))


def environment(server: Mapping[str, Any], *, reach: EnvironmentAccess | None = None, **config: Any) -> Environment:
    return build("mcp", {"server": server, **config}, Path("unused"), reach or access())


async def roll(tested: Environment, replies: Sequence[Reply], **options: Any) -> Rollout:
    async with scripted_chat(in_turn(replies)) as model, open_chat(model.endpoint()) as chat:
        scenario = tested.ask({"task": "what is asked"})
        return await rollout(
            tested, scenario, chat, **{"id": "r1", "seed": 7, "limits": RolloutLimits(timeout_s=60.0), **options}
        )


def results(played: Rollout) -> list[str]:
    """What the model read of its tool calls."""
    return [message["content"] for message in messages_of(played.trajectory) if message["role"] == "tool"]


async def test_a_server_of_others_is_used_and_recorded() -> None:
    tested = environment({"command": TIME_SERVER}, instructions="Tell the time.")
    convert = call("convert_time", source_timezone="Europe/Berlin", time="12:00", target_timezone="Asia/Kolkata")
    played = await roll(tested, [convert, call("convert_time", time="25:00"), DONE])
    tested.close()
    assert played.error is None
    assert [message["role"] for message in messages_of(played.trajectory)] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert messages_of(played.trajectory)[0]["content"] == "Tell the time."
    assert {tool["function"]["name"] for tool in played.trajectory.tools or ()} == {"get_current_time", "convert_time"}
    right, wrong = results(played)
    assert '"timezone": "Asia/Kolkata"' in right
    assert wrong.startswith("Error: ")
    assert {key: played.outcome[key] for key in ("finish", "answer", "tool_calls", "tool_errors")} == {
        "finish": "answer", "answer": "the answer", "tool_calls": 2, "tool_errors": 1
    }  # fmt: skip
    assert tested.reward(played.outcome, 0.75) == {"score": 0.75, "malformed": 0.0}
    assert tested.success(played.outcome, 0.75)
    assert tested.answer(played.outcome) == {"answer": "the answer", "source_ids": [], "success": True}


async def test_questions_can_be_answered_with_its_tools() -> None:
    config = {"server": {"command": COMMAND}, "allow_tools": ["add"]}
    tested = build("answers", config, Path("unused"), access())
    replies = [call("add", a=2, b=3), Reply(content="5")]
    scenario = tested.ask({"question": "What is 2 + 3?", "facts": "Use the tool."})
    async with scripted_chat(in_turn(replies)) as model, open_chat(model.endpoint()) as chat:
        played = await rollout(tested, scenario, chat, id="r1", seed=7, limits=RolloutLimits(timeout_s=60.0))
    tested.close()
    assert played.error is None
    assert messages_of(played.trajectory)[1]["content"] == "Use the tool.\n\nWhat is 2 + 3?"
    assert results(played) == ["5"]
    assert played.outcome["answer"] == "5"
    assert played.outcome["tool_calls"] == 1


async def test_a_replay_meets_the_same_results_or_says_which_one_differs() -> None:
    tested = environment({"command": TIME_SERVER})
    convert = call("convert_time", source_timezone="Europe/Berlin", time="12:00", target_timezone="Asia/Kolkata")
    played = await roll(tested, [convert, call("get_current_time", timezone="Europe/Berlin"), DONE])
    items: list[Any] = [*played.trajectory.messages_and_choices]
    ended = int(time.time())
    await replay(tested, played.scenario, Fork.of(items, 2), RolloutLimits(timeout_s=60.0))
    await until(lambda: int(time.time()) > ended)  # the server's clock has seconds
    with pytest.raises(ReplayDiffers, match="differs in turn 2: the result of get_current_time"):
        await replay(tested, played.scenario, Fork.of(items, 3), RolloutLimits(timeout_s=60.0))
    tested.close()


async def test_whatever_a_tool_returns_the_model_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNLOOP_OPERATOR_KEY", "a key that no server of others may see")
    reach = access(environment_secrets={NAME: {"crm": SecretStr("s3cret")}})
    server = {"command": COMMAND, "env": {"CRM_KEY": "crm"}}
    tested = environment(server, reach=reach, max_result_characters=1_000)
    calls = [
        call("add", a=1, b=2),
        call("add", a=1),
        call("fail"),
        call("picture"),
        call("huge"),
        Reply((("environ", '{"name": "CRM_KEY"}'),)),
        Reply((("environ", '{"name": "LEARNLOOP_OPERATOR_KEY"}'),)),
        call("no_such_tool"),
        call("nested_look_up"),
        call("count"),
    ]
    played = await roll(tested, [*calls, DONE], limits=RolloutLimits(max_turns=20))
    tested.close()
    assert played.error is None
    read = results(played)
    assert read[:2] == ["3", "Error: Input validation error: 'b' is a required property"]
    assert read[2:4] == ["Error: fail went wrong", "here:\n[image/png, 300 bytes: not shown]"]
    assert read[4] == "x" * 1_000 + "\n[cut: 1,000 of 100,000 characters]"
    assert read[5:7] == ["s3cret", "not set"]
    assert read[7].startswith("Error: there is no tool 'no_such_tool'; there are: add, count,")
    assert read[8:] == ["Error: nested.look/up went wrong", "call 8, files 1"]
    assert played.outcome["tool_errors"] == 4
    offered = {tool["function"]["name"]: tool["function"] for tool in played.trajectory.tools or ()}
    assert offered["nested_look_up"]["parameters"] == mcp_server.NESTED
    assert sum(name.startswith("nested_look_up_") for name in offered) == 1
    assert offered["fail"]["parameters"] == {"type": "object", "properties": {}}
    assert {len(tool["description"]) for tool in offered.values()} <= {900, 1_024}


async def test_a_tool_that_takes_too_long_is_an_error_that_the_session_survives() -> None:
    tested = environment({"command": COMMAND}, tool_timeout_s=2)
    played = await roll(tested, [call("slow"), call("count"), DONE])
    tested.close()
    assert results(played) == ["Error: no result within 2 s", "call 2, files 1"]
    assert played.outcome["tool_errors"] == 1


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("die", "ended with status 3; it last wrote:"),
        ("flood", "sent more than 32,000,000 bytes in one session"),
        ("hang", "the MCP server hangs"),
    ],
)
async def test_a_rollout_whose_server_fails_failed(tool: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.environment.mcp.session._PING_TIMEOUT_S", 0.3)
    tested = environment({"command": COMMAND}, tool_timeout_s=1 if tool == "hang" else 30)
    played = await roll(tested, [call(tool), DONE])
    tested.close()
    assert played.failure is not None
    assert reason in played.failure.message


async def test_what_a_server_wrote_last_is_reported_even_after_its_exit() -> None:
    command = ["sh", "-c", "(exec >&-; sleep 0.2; echo no such package >&2) & exit 2"]
    settings = load_settings(environment_commands=(shlex.join(command),))
    tested = environment({"command": command}, reach=EnvironmentAccess(settings))
    played = await roll(tested, [DONE])
    tested.close()
    assert played.failure is not None
    assert played.failure.message.endswith("the MCP server ended with status 2; it last wrote: no such package")


async def test_episodes_share_nothing_and_end_with_the_run() -> None:
    started: list[int] = []
    most = 0

    class Counting(EnvironmentAccess):
        async def start(self, *arguments: Any) -> Any:
            nonlocal most
            process = await super().start(*arguments)
            started.append(process.pid)
            most = max(most, sum(map(_runs, started)))
            return process

    settings = load_settings(environment_commands=(NAME,), environment_servers=2)
    tested = environment({"command": COMMAND}, reach=Counting(settings), allow_tools=["count", "child"])
    # Waiting for a place is not the rollout's time.
    rollouts = await asyncio.gather(*(roll(tested, [call("count"), call("child"), DONE]) for _ in range(3)))
    assert [results(played)[0] for played in rollouts] == ["call 1, files 1"] * 3
    assert [tool["function"]["name"] for tool in rollouts[0].trajectory.tools or ()] == ["count", "child"]
    tested.close()
    children = [int(results(played)[1]) for played in rollouts]
    await until(lambda: not any(map(_runs, [*started, *children])))
    assert most <= 2


async def test_a_tool_that_was_asked_for_and_is_not_there_fails_the_rollout() -> None:
    tested = environment({"command": COMMAND}, allow_tools=["add", "nothing"])
    played = await roll(tested, [DONE])
    tested.close()
    assert "the MCP server has no tool nothing; it has: add," in str(played.error)


async def test_a_server_at_a_url() -> None:
    async with mcp_server.over_http() as url:
        tested = environment({"url": f"{url}/mcp/"}, reach=access(environment_hosts=("127.0.0.1",)))
        played = await roll(tested, [call("add", a=1, b=2), call("picture"), DONE])
        moved = await roll(environment({"url": f"{url}/moved"}, reach=access(environment_hosts=("127.0.0.1",))), [DONE])
        inside = await roll(environment({"url": f"{url}/mcp/"}), [DONE])
        tested.close()
    assert played.error is None
    assert results(played)[0] == "3"
    assert "redirect" in str(moved.error)
    assert "has an address that is not public" in str(inside.error)


EMPTY_LISTS = b'{"jsonrpc": "2.0", "id": 0, "result": {"x": [[]' + b",[]" * 500_000 + b"]}}"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (bomb, "the server's answer is compressed (gzip), which it was asked not to be"),
        (gigabyte, "the server's answer has more than 8,000,000 bytes"),
        (endless, "the server's answer has more than 8,000,000 bytes"),
        (endless_events, "the server's answer has more than 8,000,000 bytes"),
        (saying(EMPTY_LISTS), "the server's answer has more than 500,000 JSON values"),
    ],
)
async def test_a_server_at_a_url_that_answers_with_too_much_fails_the_rollout(answer: Answer, reason: str) -> None:
    async with hostile_provider(answer) as server:
        tested = environment({"url": server.url}, reach=access(environment_hosts=("127.0.0.1",), environment_servers=1))
        # The first one gives its place back.
        assert [str((await roll(tested, [DONE])).error) for _ in range(2)] == [
            f"EpisodeFailed: the MCP server cannot be used: {reason}"
        ] * 2
        assert server.accepted_bytes < MOST_TAKEN
        tested.close()


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"jsonrpc": "1.0"}', b"\xff"])
async def test_a_server_at_a_url_whose_answer_is_malformed_fails_the_rollout(body: bytes) -> None:
    async with hostile_provider(saying(body)) as server:
        tested = environment({"url": server.url}, reach=access(environment_hosts=("127.0.0.1",), environment_servers=1))
        error = (await roll(tested, [DONE])).error
        assert str(error).startswith("EpisodeFailed: the MCP server sent a malformed message: ")
        tested.close()


@pytest.mark.parametrize("answer", [drip, silent_events])
async def test_a_server_at_a_url_that_never_ends_its_answer_fails_the_rollout(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.environment.mcp.session.START_TIMEOUT_S", 0.5)
    async with hostile_provider(answer) as server:
        tested = environment({"url": server.url}, reach=access(environment_hosts=("127.0.0.1",), environment_servers=1))
        for _ in range(2):
            played = await roll(tested, [DONE])
            assert played.error == "EpisodeFailed: the MCP server did not name its tools within 0.5 s"
        tested.close()


async def test_a_session_ends_whatever_its_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.environment.mcp.http._END_TIMEOUT_S", 0.1)
    ended = asyncio.Event()

    async def answer(server: HostileProvider, writer: asyncio.StreamWriter) -> None:
        method = server.heads[-1].partition(" ")[0]
        if method == "DELETE":
            ended.set()
            await drip(server, writer)
        posts = sum(head.startswith("POST") for head in server.heads)
        await (NAMES_ITS_TOOLS[posts - 1] if method == "POST" else saying(b"", 405))(server, writer)

    async with hostile_provider(answer) as server:
        tools = await tools_of(HttpServer(server.url), access(environment_hosts=("127.0.0.1",)))
    assert [tool.name for tool in tools] == ["add"]
    assert ended.is_set()


async def test_a_server_that_cannot_be_started_says_so() -> None:
    reach = EnvironmentAccess(load_settings(environment_commands=("/no/such/server", "true")))
    missing = await roll(environment({"command": ["/no/such/server"]}, reach=reach), [DONE])
    assert "the MCP server /no/such/server cannot be started: No such file" in str(missing.error)
    ended = await roll(environment({"command": ["true"]}, reach=reach), [DONE])
    assert "the MCP server ended with status 0" in str(ended.error)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
