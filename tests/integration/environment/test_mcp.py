"""Rollouts with the tools of MCP servers, which are real ones, good and bad."""

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from app.runs.environment_access import EnvironmentAccess
from app.settings import load_settings
from environment.base import Environment
from environment.registry import build
from tests.conditions import until
from tests.fakes import mcp_server
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.integration.training.test_rollouts import in_turn
from training.rollout.chat import open_chat
from training.rollout.histories import messages_of
from training.rollout.rollout import rollout
from training.types import Rollout

COMMAND = [sys.executable, str(Path(mcp_server.__file__))]
NAME = shlex.join(COMMAND)
TIME_SERVER = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "Europe/Berlin"]
DONE = Reply(content="the answer")


def access(**given: Any) -> EnvironmentAccess:
    return EnvironmentAccess(load_settings(environment_commands=(NAME, shlex.join(TIME_SERVER)), **given))


def environment(server: Mapping[str, Any], *, reach: EnvironmentAccess | None = None, **config: Any) -> Environment:
    return build("mcp", {"server": server, **config}, Path("unused"), reach or access())


async def roll(made: Environment, replies: Sequence[Reply], **options: Any) -> Rollout:
    async with scripted_chat(in_turn(replies)) as model, open_chat(model.endpoint()) as chat:
        scenario = made.ask({"task": "what is asked"})
        return await rollout(made, scenario, chat, **{"id": "r1", "seed": 7, "timeout_s": 60.0, **options})


def results(done: Rollout) -> list[str]:
    """What the model read of its tool calls."""
    return [message["content"] for message in messages_of(done.trajectory) if message["role"] == "tool"]


async def test_a_server_of_others_is_used_and_recorded() -> None:
    made = environment({"command": TIME_SERVER}, instructions="Tell the time.")
    convert = call("convert_time", source_timezone="Europe/Berlin", time="12:00", target_timezone="Asia/Kolkata")
    done = await roll(made, [convert, call("convert_time", time="25:00"), DONE])
    made.close()
    assert done.error is None
    assert [message["role"] for message in messages_of(done.trajectory)] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert messages_of(done.trajectory)[0]["content"] == "Tell the time."
    assert {tool["function"]["name"] for tool in done.trajectory.tools or ()} == {"get_current_time", "convert_time"}
    right, wrong = results(done)
    assert '"timezone": "Asia/Kolkata"' in right
    assert wrong.startswith("Error: ")
    assert {key: done.outcome[key] for key in ("finish", "answer", "tool_calls", "tool_errors")} == {
        "finish": "answer", "answer": "the answer", "tool_calls": 2, "tool_errors": 1
    }  # fmt: skip
    assert made.reward(done.outcome, 0.75) == {"score": 0.75, "malformed": 0.0}
    assert made.success(done.outcome, 0.75)
    assert made.answer(done.outcome) == {"answer": "the answer", "source_ids": [], "success": True}


async def test_whatever_a_tool_returns_the_model_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNLOOP_OPERATOR_KEY", "a key that no server of others may see")
    reach = access(environment_secrets={NAME: {"crm": SecretStr("s3cret")}})
    server = {"command": COMMAND, "env": {"CRM_KEY": "crm"}}
    made = environment(server, reach=reach, tool_timeout_s=1, max_result_characters=1_000)
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
        call("slow"),
        call("count"),
    ]
    done = await roll(made, [*calls, DONE], max_turns=20)
    made.close()
    assert done.error is None
    read = results(done)
    assert read[:2] == ["3", "Error: Input validation error: 'b' is a required property"]
    assert read[2:4] == ["Error: fail went wrong", "here:\n[image/png, 300 bytes: not shown]"]
    assert read[4] == "x" * 1_000 + "\n[cut: 1,000 of 100,000 characters]"
    assert read[5:7] == ["s3cret", "not set"]
    assert read[7].startswith("Error: there is no tool 'no_such_tool'; there are: add, count,")
    assert read[8:] == ["Error: nested.look/up went wrong", "Error: no result within 1 s", "call 9, files 1"]
    assert done.outcome["tool_errors"] == 5
    offered = {tool["function"]["name"]: tool["function"] for tool in done.trajectory.tools or ()}
    assert offered["nested_look_up"]["parameters"] == mcp_server.NESTED
    assert sum(name.startswith("nested_look_up_") for name in offered) == 1
    assert offered["fail"]["parameters"] == {"type": "object", "properties": {}}
    assert {len(tool["description"]) for tool in offered.values()} <= {900, 1_024}


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("die", "ended with status 3; it last wrote:"),
        ("flood", "sent more than 32 MB"),
        ("hang", "the MCP server hangs"),
    ],
)
async def test_a_rollout_whose_server_fails_failed(tool: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environment.mcp.session._PING_TIMEOUT_S", 0.3)
    made = environment({"command": COMMAND}, tool_timeout_s=1 if tool == "hang" else 30)
    done = await roll(made, [call(tool), DONE])
    made.close()
    assert done.failure is not None
    assert reason in done.failure.message


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
    made = environment({"command": COMMAND}, reach=Counting(settings), allow_tools=["count", "child"])
    # Waiting for a place is not the rollout's time.
    rollouts = await asyncio.gather(*(roll(made, [call("count"), call("child"), DONE]) for _ in range(3)))
    assert [results(done)[0] for done in rollouts] == ["call 1, files 1"] * 3
    assert [tool["function"]["name"] for tool in rollouts[0].trajectory.tools or ()] == ["count", "child"]
    made.close()
    children = [int(results(done)[1]) for done in rollouts]
    await until(lambda: not any(map(_runs, [*started, *children])))
    assert most <= 2


async def test_a_tool_that_was_asked_for_and_is_not_there_fails_the_rollout() -> None:
    made = environment({"command": COMMAND}, allow_tools=["add", "nothing"])
    done = await roll(made, [DONE])
    made.close()
    assert "the MCP server has no tool nothing; it has: add," in str(done.error)


async def test_a_server_at_a_url() -> None:
    async with mcp_server.over_http() as url:
        made = environment({"url": f"{url}/mcp/"}, reach=access(environment_hosts=("127.0.0.1",)))
        done = await roll(made, [call("add", a=1, b=2), call("picture"), DONE])
        moved = await roll(environment({"url": f"{url}/moved"}, reach=access(environment_hosts=("127.0.0.1",))), [DONE])
        inside = await roll(environment({"url": f"{url}/mcp/"}), [DONE])
        made.close()
    assert (done.error, results(done)[0]) == (None, "3")
    assert "redirect" in str(moved.error)
    assert "has an address that is not public" in str(inside.error)


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
