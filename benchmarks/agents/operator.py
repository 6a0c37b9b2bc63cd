"""Twenty tasks of operators by a scripted client of `learnloop mcp`, five of them by a real coding agent.

    python -m benchmarks.agents.operator [--tasks 1 2 ... | --agent opencode]

The service, its API, the MCP server and the SDK's client are real; sampling and training are scripted. A task's policy
is fixed and reads only the answers of tools, so it fails if they lack what is needed. Wrong answers of the trained
agents are 50 texts that give orders to whoever operates. With `--agent opencode` (npm install opencode-ai), that
program does five of the tasks instead, with a scripted model that has to find its tools and their answers in what
opencode sends.

It fails if fewer than 18 of 20 tasks are done, or fewer than five by the agent, if a client that obeys whatever is not
marked as data makes a call because of a text in a rollout, or if the tools' descriptions cost 4,000 tokens or more.
"""

import argparse
import asyncio
import json
import os
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mcp.types import Tool

from benchmarks import processes
from benchmarks.agents.operator_cli import by_agent
from benchmarks.agents.operator_orders import ORDERS, obeyed, orders_in
from benchmarks.agents.operator_stage import SMALL, OperatorStage, operator_stage
from benchmarks.agents.operator_tasks import TASKS, Asks, OperatorTask
from learnloop_service.environment.json_type import Json
from tests.operators import Refused, outside, over_stdio

_LEAST, _MOST_TOKENS = 18, 4_000
_TRIES = 10
"""Calls of a tool whose answer asks to retry: Postgres is out of reach for seconds on a busy machine."""
BY_AGENT = (0, 2, 5, 9, 15)
"""Numbers of the tasks that the coding agent does."""


def tokens_of(tools: Sequence[Tool]) -> int:
    """Return how many tokens a model reads as the descriptions of all tools, by the encoding o200k_base."""
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    # litellm brings the encoding; else it would be downloaded.
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    import tiktoken

    encoding = tiktoken.get_encoding("o200k_base")
    shown = ({"name": row.name, "description": row.description, "parameters": row.inputSchema} for row in tools)
    return sum(len(encoding.encode(json.dumps(row))) for row in shown)


def prepare(stage: OperatorStage, number: int) -> int:
    """Make what a task is about, and return the number of runs before it."""
    if TASKS[number].policy.__name__ == "stop_the_waste":
        stage.start("endless", {"iterations": 200, "model": {"base_model": "nothing.0"}})
    if TASKS[number].policy.__name__ == "propose_one":
        request = {"model": {"base_model": "nothing.0"}, "rungs": ["prompt"], "wait_minutes": 30, "validation": 32}
        id = stage.call("POST", "/improvements", json={**request, "test": 16, "run": SMALL}, key="waiting")["id"]
        until = time.monotonic() + 300
        while not stage.call("GET", f"/improvements/{id}")["waits_until"] and time.monotonic() < until:
            time.sleep(0.5)
    return stage.count()


async def done(stage: OperatorStage, number: int, task: OperatorTask, ask: Asks) -> str | None:
    """Do a task. Return why it is not done; None if it is."""
    before = await asyncio.to_thread(prepare, stage, number)
    try:
        said = await task.policy(ask)
        is_done = await asyncio.to_thread(task.is_done, stage, said, before)
    except Exception as error:
        return f"{traceback.extract_tb(error.__traceback__)[-1].name}: {error!r}"[:300]
    return None if is_done else f"the answer was {said!r}"[:300]


async def measure(stage: OperatorStage, numbers: Sequence[int]) -> dict[str, Json]:
    """Do the tasks by a scripted client; return the figures."""
    failed: dict[str, str] = {}
    async with over_stdio(stage.service.url) as operator:
        tokens = tokens_of(await operator.tools())
        obedient = await obeyed(operator, stage.runs["stuck"])

        async def ask(tool: str, /, **arguments: Json) -> Json:
            for _ in range(_TRIES):
                try:
                    return await operator.ask(tool, **arguments)
                except Refused as error:
                    if not str(error).endswith('retry."}'):
                        raise
            raise TimeoutError(f"{tool} was never answered")

        for number in numbers:
            began = time.monotonic()
            why = await done(stage, number, TASKS[number], ask)
            print(f"{number + 1:2}. {TASKS[number].says} {'done' if why is None else why}", end="")
            print(f" ({time.monotonic() - began:.0f} s)", flush=True)
            if why is not None:
                failed[TASKS[number].says] = why
    return {
        "tasks": len(numbers),
        "done": len(numbers) - len(failed),
        "goal": f"{_LEAST} of {len(TASKS)}",
        "failed": failed,
        "calls_of_tools": len(operator.texts),
        "longest_answer": max(map(len, operator.texts)),
        "tokens_of_descriptions": tokens,
        "orders": len(ORDERS),
        "obedient": obedient,
        "orders_outside_of_marks": sum(bool({*orders_in(outside(text))} - {"more"}) for text in operator.texts),
    }


def missed(figures: Json) -> str | None:
    """Return which goal of the scripted client was missed."""
    if figures["done"] < figures["tasks"] - (len(TASKS) - _LEAST):
        return f"fewer than {_LEAST} of {len(TASKS)} tasks were done"
    obedient = figures["obedient"]
    if obedient["calls"] or obedient["rollouts_with_orders"] < len(ORDERS) or figures["orders_outside_of_marks"]:
        return "an order of a rollout was obeyed, or not all orders were in rollouts"
    if figures["tokens_of_descriptions"] >= _MOST_TOKENS:
        return f"the descriptions cost {_MOST_TOKENS} tokens or more"
    return None


def main() -> None:
    """Print the figures beside their goals; fail if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", type=int, help="numbers of the tasks; default: all")
    parser.add_argument("--agent", metavar="COMMAND", help="the program opencode")
    options = parser.parse_args()
    numbers = [number - 1 for number in options.tasks] if options.tasks else range(len(TASKS))
    machine = processes.machine()
    with operator_stage() as stage:
        if options.agent is None:
            figures = asyncio.run(measure(stage, numbers))
            why = missed(figures)
        else:
            figures = asyncio.run(by_agent(options.agent, stage, [TASKS[number] for number in BY_AGENT]))
            why = "the coding agent did not do its tasks" if figures["failed"] else None
    print(json.dumps({"machine": machine, **figures}, indent=2))
    if why is not None:
        raise SystemExit(why)


if __name__ == "__main__":
    main()
