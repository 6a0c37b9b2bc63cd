"""Walk through a release as an operator does, with the embedded engine: a worse checkpoint is taken back by itself.

    python -m benchmarks.releases.operator_walk [--users 400]

A run trains the tiny model to search emails, and its last checkpoint is promoted as `desk/live`. Then a release of its
untrained checkpoint is started: first with its trial on held-out scenarios, which refuses it before any user meets it,
and then without one. Simulated users ask `desk/live`, each one question about an inbox of their own, and send a thumbs
down if the answer is wrong. Prints what `learnloop releases start`, `watch` and `show` say. Fails unless the trial
refused the checkpoint, the guardrails took it back, and everybody gets the trained one afterwards.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from app.cli.client import Service
from app.cli.service_process import free_port
from app.cli.watching import follow
from benchmarks import processes
from environment.email_search.synthetic import address_of, make_world
from environment.json_type import Json

_AT_ONCE = 8
_SEED = 11
"""Of the users' inboxes."""
_RUN: dict[str, Any] = {
    "environment": {"name": "email_search"},
    "model": {"project": "desk", "name": "agent"},
    "iterations": 9,
    "evaluation": {"every": 9, "samples": 1, "test_scenarios": 0},
}
_RAMP = ("--ramp", "0.2", "--ramp", "0.5")


def _learnloop(url: str, *words: str) -> str:
    """Print a command and what it prints, and return the latter."""
    print(f"\n$ learnloop {' '.join(words)}", flush=True)
    ran = subprocess.run(
        [sys.executable, "-m", "app.cli", *words, "--url", url], capture_output=True, text=True, check=False
    )
    print(ran.stdout + ran.stderr, end="", flush=True)
    return ran.stdout


def _released(url: str, *more: str) -> str:
    """Start a release of the untrained checkpoint, watch it to its end, and return its id."""
    said = _learnloop(url, "releases", "start", "desk/live", "--step", "0", *_RAMP, *more)
    release_id = said.split()[1]
    _learnloop(url, "releases", "watch", release_id)
    return release_id


def _ask(http: httpx.Client, user: int) -> Json:
    """Let a user ask a question about an inbox, and send a thumbs down if the answer is wrong."""
    world = make_world("test", _SEED, user)
    body = {
        "model": "desk/live",
        "user": f"user-{user}",
        "question": world.question,
        "inbox_address": address_of("test", _SEED, user),
    }
    reply = http.post("/ask", json=body).raise_for_status().json()
    if world.answer not in (reply["answer"] or ""):
        opinion = {"event_id": f"user-{user}", "type": "thumbs_down", "trajectory_id": reply["trajectory_id"]}
        http.post("/feedback", json=opinion).raise_for_status()
    return reply


def _everybody(url: str, users: int, over: Event) -> list[Json]:
    """Let users ask, some at a time, until the release is over. Returns their replies."""
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as http, ThreadPoolExecutor(_AT_ONCE) as threads:
        asked = threads.map(lambda user: None if over.is_set() else _ask(http, user), range(users))
        return [reply for reply in asked if reply is not None]


def walk(users: int, data_dir: Path) -> Sequence[str]:
    """Return what was not as it should be."""
    port = free_port()
    with (
        processes.service(data_dir, port) as child,
        Service(f"http://127.0.0.1:{port}", timeout_s=300) as service,
    ):
        processes.wait_for(child, processes.answers(service))
        run = follow(service, service.start_run(_RUN)["run_id"], lambda _: None)
        print(f"trained: {run['verdict']['text']}")
        service.call("POST", "/models/desk/agent/promote", json={"step": run["best_checkpoint"]["step"], "as": "live"})
        refused = service.call("GET", f"/releases/{_released(service.url)}")
        over = Event()
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(_everybody, service.url, users, over)
            began = time.monotonic()
            taken_back = service.call("GET", f"/releases/{_released(service.url, '--skip-trial')}")
            over.set()
            replies = asking.result()
        print(f"\n{len(replies)} users had asked after {time.monotonic() - began:.0f} s")
        _learnloop(service.url, "releases", "show", taken_back["release_id"])
        _learnloop(service.url, "releases", "verify", taken_back["release_id"])
        with httpx.Client(base_url=service.url, timeout=300, trust_env=False) as http:
            after = {_ask(http, user)["step"] for user in range(users, users + 10)}
    return [
        what
        for what, is_so in {
            f"the trial let it pass: {refused['state']}, {refused['reason']}": refused["reason"] != "trial",
            f"it was not taken back: {taken_back['state']}, {taken_back['reason']}": taken_back["state"]
            != "rolled_back",
            f"checkpoints {after} answer afterwards": after != {run["best_checkpoint"]["step"]},
        }.items()
        if is_so
    ]


def main() -> None:
    """Print the walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=400, help="who ask at most (default: 400)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-operator-") as directory:
        raise SystemExit("; ".join(walk(given.users, Path(directory))) or 0)


if __name__ == "__main__":
    main()
