"""Walk through three nights of a schedule with the embedded engine and its tiny base model.

    python -m benchmarks.service.nightly [--users 60] [--nights 3]

Each day simulated users open sessions with the promoted name `desk/live`, with their consent, and ask something. The
desk likes short replies: the reward is higher the shorter the reply is. At night the schedule is made due, draws tasks,
trains a new model from the champion, and tries it against the champion. The last night comes without new sessions and
is skipped. Prints each night; fails if a night has neither a trial with a decision nor, in the last one, a reason.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from app.cli.client import Service
from app.cli.service_process import free_port
from benchmarks import processes
from environment.json_type import Json
from training.rollout.agents.base import AgentModel

_TOKENS = 24
"""Longest reply, in tokens."""
_AT_ONCE = 8
_TOPICS = ("my invoice", "the delivery", "a refund", "my password", "the contract", "an appointment")
_RUN: dict[str, Any] = {
    "environment": {"name": "agent", "config": {"runner": {"python": "benchmarks.service.nightly:short_replies"}}},
    "judge": {"name": "reported"},
    "max_completion_tokens": _TOKENS,
    "iterations": 4,
    "groups_per_iteration": 6,
    "rollouts_per_group": 8,
    "evaluation": {"every": 2, "scenarios": 8, "samples": 1, "test_scenarios": 0},
}


async def short_replies(task: Mapping[str, Json], model: AgentModel) -> Json:
    """Do a task of a user: the agent of the desk. The reward is 1 for an empty reply and 0 for the longest one."""
    client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, http_client=model.http_client, max_retries=0)
    reply = await client.chat.completions.create(model=model.model, messages=list(task["messages"]))
    used = reply.usage.completion_tokens if reply.usage else _TOKENS
    return {"reward": max(0.0, 1 - used / _TOKENS)}


def _day(url: str, users: int, day: int) -> None:
    """Let each user ask between one and three times."""
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as http, ThreadPoolExecutor(_AT_ONCE) as threads:
        asked = [(user, number) for user in range(users) for number in range(1 + user % 3)]
        list(threads.map(lambda each: _session(http, each[0], f"{day}.{each[1]}"), asked))


def _session(http: httpx.Client, user: int, number: str) -> None:
    body = {"model": "desk/live", "user": f"user-{user}", "train": True}
    opened = http.post("/sessions", json=body).raise_for_status().json()
    headers = {"authorization": f"Bearer {opened['api_key']}"}
    question = f"Customer {user}, request {number}: I have a question about {_TOPICS[user % len(_TOPICS)]}."
    said = {"model": "desk/live", "messages": [{"role": "user", "content": question}], "max_tokens": _TOKENS}
    reply = http.post(f"/sessions/{opened['id']}/v1/chat/completions", json=said, headers=headers).raise_for_status()
    reward = 1 - reply.json()["usage"]["completion_tokens"] / _TOKENS
    http.post(f"/sessions/{opened['id']}/outcome", json={"reward": reward}, headers=headers).raise_for_status()


def _champion(service: Service) -> None:
    """Promote an untrained checkpoint, so that users have somebody to talk to."""
    tasks = [{"task": {"messages": [{"role": "user", "content": f"Hello {number}"}]}} for number in range(6)]
    own = {"name": "agent", "config": {**_RUN["environment"]["config"], "scenarios": tasks}}
    request = _RUN | {"environment": own, "iterations": 1, "model": {"project": "desk", "name": "first"}}
    _ended(service, f"/runs/{service.start_run(request)['run_id']}")
    service.call("POST", "/models/desk/first/promote", json={"step": 0, "as": "live"})


def _ended(service: Service, path: str) -> Json:
    while (found := service.call("GET", path))["status"] in ("queued", "running"):
        time.sleep(0.5)
    if found["status"] != "completed":
        raise SystemExit(f"{path} is {found['status']}: {found.get('error')}")
    return found


def _night(service: Service, schedule: str) -> Json:
    """Make the schedule due, and return what came of it."""
    due = service.call("POST", f"/schedules/{schedule}/run")
    while True:
        [found, *_] = service.call("GET", f"/schedules/{schedule}/runs")["items"]
        if found["state"] == "skipped" or (found["state"] == "done" and (found["decision"] or found["reason"])):
            assert found["due_at"] == due["due_at"]
            return found
        time.sleep(0.5)


def walk(users: int, nights: int, data_dir: Path) -> bool:
    """Return whether each night ended as it should."""
    port = free_port()
    sound = True
    with (
        processes.service(data_dir, port, LEARNLOOP_AGENT_MODULES="benchmarks") as child,
        Service(f"http://127.0.0.1:{port}", timeout_s=300) as service,
    ):
        processes.wait_for(child, processes.answers(service))
        _champion(service)
        request = {"name": "nightly", "cron": "0 2 * * *", "promoted_name": "live", "project": "desk"}
        source = {"sessions": {"model": "desk/live", "reward_below": 0.5, "limit": 200}}
        body = request | {"run": _RUN | {"source": source}, "least_new_tasks": users}
        schedule = service.call("POST", "/schedules", json=body)["id"]
        for night in range(1, nights + 2):
            is_last = night == nights + 1
            if not is_last:
                _day(service.url, users, night)
            began = time.perf_counter()
            found = _night(service, schedule)
            print(f"night {night}: {_told(service, found)} ({time.perf_counter() - began:.0f} s)", flush=True)
            sound &= (found["reason"] == "too_few_tasks") if is_last else found["decision"] is not None
        shown = service.call("GET", f"/schedules/{schedule}")
        print(f"{shown['trials']} trials; at most {shown['expected_wrong_promotions']:.2f} wrong promotions expected")
        gone = service.call("POST", "/users/delete", json={"user": "user-1"})
        print(f"user-1 deleted: {gone['deleted']}; trained on: {', '.join(gone['trained_checkpoints']) or 'none'}")
    return sound


def _told(service: Service, due: Json) -> str:
    if due["state"] == "skipped" or due["decision"] is None:
        return f"{due['reason']}: {due['detail']}"
    report = service.call("GET", f"/evaluations/{due['evaluation_id']}")["report"]
    champion, challenger = (each["success"]["mean"] for each in report["models"])
    return (
        f"{due['tasks']} tasks of {due['users']} users, from {due['started_from']}; trial over "
        f"{report['trial']['pairs']} tasks, success {champion:.0%} against {challenger:.0%}: {due['decision']}"
    )


def main() -> None:
    """Print the nights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=60, help="users a day (default: 60)")
    parser.add_argument("--nights", type=int, default=3, help="nights with new sessions (default: 3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-nightly-") as directory:
        sys.exit(0 if walk(given.users, given.nights, Path(directory)) else 1)


if __name__ == "__main__":
    main()
