"""Two nights over HTTP with the real engine and the tiny base model: the first is learned from, and in the second users
meet both arms of the release that follows. Times in the database are moved back instead of waited for."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from benchmarks.learning.served_sessions import NAME, Ask, Stage, served_stage
from learnloop_service.environment.json_type import Json

_MOST_S = 900.0
_LATER = (
    "UPDATE release_unit SET exposed_at = exposed_at - interval '8 days'",
    "UPDATE release_observation SET observed_at = observed_at - interval '8 days'",
    "UPDATE release SET looked_at = looked_at - interval '1 day', started_at = started_at - interval '8 days'",
)
_DUE = "UPDATE schedule SET next_due_at = now() - interval '1 minute'"


def two_nights(directory: Path, users: int) -> dict[str, Json]:
    """Return what a schedule learned from the users of the first night, and what those of the second met."""
    with served_stage(directory) as stage:
        stage.promote()
        sessions = {"model": NAME, "train_on": "answers", "outcome": {"value": "resolved"}}
        run = {"source": {"sessions": sessions}, "iterations": 4}
        schedule = {"name": "nightly", "cron": "0 2 * * *", "project": "bench", "then": "release", "run": run}
        path = f"/schedules/{stage.service.call('POST', '/schedules', json=schedule)['id']}/runs"
        _night(stage, "first", users)
        _sql(stage, _DUE)
        due = _once(lambda: _newest(stage, path), lambda due: due["state"] == "done")
        learned = stage.service.call("GET", f"/runs/{due['run_id']}")
        checked = stage.service.call("GET", f"/runs/{due['run_id']}/verify")  # before more sessions are moved back
        _night(stage, "second", users)
        _sql(stage, *_LATER)
        release_path = f"/releases/{due['release_id']}"
        release = _once(lambda: stage.service.call("GET", release_path), lambda release: release["effect"]["units"])
        evidence = stage.service.call("GET", f"{release_path}/verify")
        return {
            "due": {name: due[name] for name in ("state", "reason", "run_status", "started_from", "tasks", "users")},
            "learned": [learned["warnings"][0], learned["warnings"][-1]],
            "release": {name: release[name] for name in ("state", "reason", "quality", "looks")},
            "faults": [*checked["differences"][:3], *evidence["differences"][:3]],
        }


def _night(stage: Stage, name: str, users: int) -> None:
    """Let new users be answered. They like an answer whose last token is odd."""
    asks = [Ask(f"{name} {number}", f"When is meeting {number}?") for number in range(users)]
    stage.report({one.id: float(one.tokens[-1] % 2) for one in asyncio.run(stage.answer(asks))})


def _newest(stage: Stage, path: str) -> Json:
    items = stage.service.call("GET", path)["items"]
    return items[0] if items else {"state": None}


def _once(ask: Callable[[], Json], condition: Callable[[Json], object]) -> Json:
    until = time.monotonic() + _MOST_S
    while not condition(reply := ask()):
        assert time.monotonic() < until, reply
        assert reply.get("state") != "skipped", reply
        time.sleep(1.0)
    return reply


def _sql(stage: Stage, *statements: str) -> None:
    with psycopg.connect(stage.database_url) as connection:
        for statement in statements:
            connection.execute(statement.encode())
