"""Commands that stay for the next task, as real processes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest

from learnloop.kept_commands import CommandEnded, KeptCommands

AGENT = """
import json, os, sys
print("ready")
for line in sys.stdin:
    task = json.loads(line)["LEARNLOOP_TASK"]
    print(f"thinking about {task}", file=sys.stderr, flush=True)
    if task == "die":
        raise KeyError("OPENAI_MODEL")
    if task == "long":
        print("x" * 9_000_000)
    if task == "hang":
        sys.stdin.readline()
    print(json.dumps({"reward": "much"} if task == "lie" else {"reward": os.getpid()}), flush=True)
    if task == "twice":
        print('{"reward": -1}', flush=True)
"""


@pytest.fixture
async def commands() -> AsyncIterator[KeptCommands]:
    commands = KeptCommands([sys.executable, "-S", "-c", AGENT], {"PATH": os.environ["PATH"]})
    yield commands
    await commands.aclose()


async def pid_of(commands: KeptCommands, task: str = "any") -> int:
    return int((await commands.do({"LEARNLOOP_TASK": task}))["reward"])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_does_one_task_after_another_and_ends_with_its_owner(commands: KeptCommands) -> None:
    first = [await pid_of(commands, task) for task in ("a", "b ü\u2028")]
    assert len(set(first)) == 1
    several = set(await asyncio.gather(*(pid_of(commands) for _ in range(3))))
    assert len(several) == 3
    assert first[0] in several
    await commands.aclose()
    assert not any(map(is_alive, several))


async def test_a_command_that_ends_says_why_and_is_started_again(commands: KeptCommands) -> None:
    before = await pid_of(commands)
    with pytest.raises(CommandEnded) as ended:
        await commands.do({"LEARNLOOP_TASK": "die"})
    assert str(ended.value).endswith("KeyError: 'OPENAI_MODEL'")
    assert "thinking about any" not in str(ended.value)  # the task before
    assert await pid_of(commands) != before


async def test_what_it_prints_too_much_of_is_refused(commands: KeptCommands) -> None:
    with pytest.raises(CommandEnded, match="a line of more than 8,000,000 bytes"):
        await commands.do({"LEARNLOOP_TASK": "long"})
    assert await commands.do({"LEARNLOOP_TASK": "lie"}) == {
        "reward": None,
        "reason": "the command printed reward is a finite number from -1e+09 to 1e+09, not 'much'",
    }


async def test_a_second_outcome_is_not_that_of_the_next_task(commands: KeptCommands) -> None:
    pid = await pid_of(commands, "twice")
    [process] = commands._idle
    while process._lines.empty():
        await asyncio.sleep(0)
    assert await pid_of(commands) == pid


async def test_a_task_that_is_cancelled_ends_its_process(commands: KeptCommands) -> None:
    pid = await pid_of(commands)
    hanging = asyncio.ensure_future(commands.do({"LEARNLOOP_TASK": "hang"}))
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert not is_alive(pid)


async def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        await KeptCommands(["/nowhere/agent"], {}).do({"LEARNLOOP_TASK": "any"})
