"""Train on a third-party MCP server through the whole service, and report its tool calls and rewards.

    python -m benchmarks.learning.mcp_environment [--iterations 5]

Trains the tiny base model with the tools of `mcp-server-time` (PyPI, MIT), one server process per rollout. The model
has never seen such tools: this tests the integration, not what the model learns about time. The judge is RULER over a
scripted judge model that scores a rollout by its content: a call of an offered tool, a result that is not an error, and
an answer.
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

from app.cli.client import Service
from app.cli.service_process import own_service
from app.cli.watching import follow
from environment.json_type import Json
from tests.fakes.scripted_judge import KEY, scripted_judge

SERVER = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "Europe/Berlin"]
PLACES = ("Asia/Tokyo", "Asia/Kolkata", "America/New_York", "America/Lima", "Africa/Cairo", "Australia/Sydney")
TOOLS = ("get_current_time", "convert_time")


def tasks() -> list[Json]:
    """Return thirty questions of the same kind."""
    return [{"task": f"It is 14:30 in {one}. What time is it in {other}?"} for one, other in permutations(PLACES, 2)]


def deserved(attempt: str) -> float:
    """Return a third each for a call of an offered tool, a result that is not an error, and an answer."""
    document = json.loads(attempt)
    messages = document["messages"]
    called = any(call["name"] in TOOLS for each in messages for call in each.get("tool_calls", ()))
    results = [each.get("content", "") for each in messages if each["role"] == "tool"]
    worked = any(not each.startswith("Error: ") for each in results)
    return (called + worked + bool(document["outcome"].get("answer"))) / 3


def recorded_run(environment: Json, iterations: int, settings: dict[str, str]) -> dict[str, Json]:
    """Do a small run in the environment, in a separate service with these settings; return its figures."""
    os.environ |= settings
    clock = time.monotonic()
    request = {
        "environment": environment,
        "iterations": iterations,
        "groups_per_iteration": 4,
        "rollouts_per_group": 4,
        "max_turns": 4,
        "concurrency": 8,
        "evaluation": {"every": 1000, "scenarios": 2, "test_scenarios": 2, "samples": 1},
    }
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as data_dir,
        own_service(Path(data_dir), waiting=lambda _: None) as service,
    ):
        ended = follow(service, service.start_run(request)["run_id"], lambda _: None)
        return figures(service, ended) | {"seconds": round(time.monotonic() - clock)}


def figures(service: Service, ended: Json) -> dict[str, Json]:
    """Return what the service recorded about the run."""
    iterations = list(service.iterations(ended["run_id"]))
    trajectories = [service.trajectory(each["id"]) for each in service.trajectories(ended["run_id"])]
    calls = [call for each in trajectories for call in called(each["messages"])]
    return {
        "status": ended["status"],
        "error": ended["error"],
        "rewards": [each["rewards"] for each in iterations],
        "skipped_groups": [each["skipped_groups"] for each in iterations],
        "trajectories": len(trajectories),
        "failed": [each["error"] for each in trajectories if each["error"]],
        "finish": Counter(str(each["outcome"].get("finish")) for each in trajectories),
        "tool_calls": Counter(calls),
        "tool_results": sum(message["role"] == "tool" for each in trajectories for message in each["messages"]),
        "reward_parts": Counter(name for each in trajectories for name in each["reward_parts"]),
        "example": max(trajectories, key=lambda each: each["reward"] or 0.0)["messages"],
    }


def called(messages: Sequence[Json]) -> list[str]:
    """Return the names of the called tools."""
    return [call["function"]["name"] for each in messages for call in each.get("tool_calls") or ()]


async def measure(iterations: int) -> dict[str, Json]:
    """Return the figures of a run with a scripted judge."""
    async with scripted_judge(truth=deserved) as judge:
        settings = {
            "LEARNLOOP_ENVIRONMENT_COMMANDS": shlex.join(SERVER),
            "LEARNLOOP_JUDGE_MODEL": "openai/scripted",
            "LEARNLOOP_JUDGE_BASE_URL": judge.url,
            "LEARNLOOP_JUDGE_API_KEY": KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        environment = {"name": "mcp", "config": {"server": {"command": SERVER}, "scenarios": tasks()}}
        return await asyncio.to_thread(recorded_run, environment, iterations, settings)


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.iterations)), indent=2))


if __name__ == "__main__":
    main()
