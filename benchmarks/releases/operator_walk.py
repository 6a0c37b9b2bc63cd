"""Walk through a release as an operator does, with the embedded engine: a worse checkpoint is taken back by itself.

    python -m benchmarks.releases.operator_walk [--users 400]

A run trains the tiny model to search emails, and its best checkpoint is promoted as `desk/live`. Then its untrained
checkpoint is released: first with a trial on held-out scenarios, which refuses it before any user meets it, and then
without one. Simulated users ask `desk/live`, each one question about an inbox of their own, and send a thumbs down if
the answer is wrong. When they have asked, an hour passes, for which the rows are made older: what came within an hour
of an answer is known only then. Prints what `learnloop releases start`, `watch` and `show` say. Fails unless the trial
refused the checkpoint, a guardrail took it back, and everybody gets the trained one afterwards.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg

from app.cli.client import Service
from app.cli.service_process import free_port
from app.cli.watching import follow
from benchmarks import processes
from benchmarks.durability.kills import database
from environment.email_search.synthetic import address_of, make_world
from environment.json_type import Json
from judges.reference import same_answer

_AT_ONCE = 8
_LONGEST_S = 300.0
"""Longest time that a command takes, in seconds."""
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
        [sys.executable, "-m", "app.cli", *words, "--url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_S,
    )
    print(ran.stdout + ran.stderr, end="", flush=True)
    return ran.stdout


def _released(url: str, *more: str) -> str:
    """Start a release of the untrained checkpoint and return its id."""
    return _learnloop(url, "releases", "start", "desk/live", "--step", "0", *_RAMP, *more).split()[1]


def _pass_an_hour(database_url: str) -> None:
    """Make what users met and said an hour older."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE release_observation SET observed_at = observed_at - interval '61 minutes'")
        connection.execute("UPDATE feedback SET received_at = received_at - interval '61 minutes'")


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
    if not same_answer(reply["answer"] or "", world.answer):
        opinion = {"event_id": f"user-{user}", "type": "thumbs_down", "trajectory_id": reply["trajectory_id"]}
        http.post("/feedback", json=opinion).raise_for_status()
    return reply


def _everybody(service: Service, release_id: str, users: range) -> int:
    """Let users ask, some at a time, while the release runs. Returns how many did."""
    with httpx.Client(base_url=service.url, timeout=300, trust_env=False) as http:

        def ask(user: int) -> bool:
            if http.get(f"/releases/{release_id}").raise_for_status().json()["state"] != "running":
                return False
            _ask(http, user)
            return True

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return sum(threads.map(ask, users))


def walk(users: int, directory: Path, database_url: str) -> Sequence[str]:
    """Return what was not as it should be."""
    port = free_port()
    with (
        processes.service(directory, port, DATABASE_URL=database_url) as child,
        Service(f"http://127.0.0.1:{port}", timeout_s=300) as service,
    ):
        processes.wait_for(child, processes.answers(service))
        run = follow(service, service.start_run(_RUN)["run_id"], lambda _: None)
        best = run["best_checkpoint"]["step"]
        print(f"trained: {run['verdict']['text']}")
        service.call("POST", "/models/desk/agent/promote", json={"step": best, "as": "live"})
        refused = _released(service.url)
        _learnloop(service.url, "releases", "watch", refused)
        taken_back = _released(service.url, "--skip-trial")
        print(f"\n{_everybody(service, taken_back, range(users))} users have asked; an hour passes")
        _pass_an_hour(database_url)
        for verb in ("watch", "show", "verify"):
            _learnloop(service.url, "releases", verb, taken_back)
        reasons = [service.call("GET", f"/releases/{each}")["reason"] for each in (refused, taken_back)]
        with httpx.Client(base_url=service.url, timeout=300, trust_env=False) as http:
            after = {_ask(http, user)["step"] for user in range(users, users + 10)}
    wrong = [] if reasons == ["trial", "guardrail"] else [f"the releases ended with {reasons}"]
    return wrong if after == {best} else [*wrong, f"checkpoints {after} answer afterwards"]


def main() -> None:
    """Print the walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=400, help="who ask at most during a release (default: 400)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-operator-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "service").mkdir()
        with database(directory / "postgres") as url:
            raise SystemExit("; ".join(walk(given.users, directory / "service", url)) or 0)


if __name__ == "__main__":
    main()
