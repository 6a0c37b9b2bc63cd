"""Kill the service with SIGKILL again and again during one real run.

    python -m benchmarks.durability.kills --kills 100

The same run, once undisturbed and once while the service and its engine are killed at random moments (Postgres keeps
running), must end with the same weights, verdict, diagnoses and events. Each kill comes a random time
(`--seconds-between`) after progress was seen. Prints the hashes, the number of finished rollouts that were repeated
(must be 0), how often each phase was hit, the cost of the journal, and a timeline of the restarts in seconds from the
start of the process, read from the service's log. Restarts into training are reported separately because they sample
their first token only afterwards. With `--max-completion-tokens 12` the run has something to diagnose.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from app.cli.client import Service, ServiceRefused, ServiceUnreachable
from app.processes.postgres import EmbeddedPostgres
from benchmarks import processes
from benchmarks.durability.restarts import Restarts, journal_percent, spread
from benchmarks.frozen_code import freeze

RUN = {
    "model": {"project": "bench", "name": "killed"},
    "groups_per_iteration": 4,
    "rollouts_per_group": 4,
    "evaluation": {"every": 4, "scenarios": 8, "test_scenarios": 8, "samples": 1},
}
_CALM_LOG = Path("undisturbed", "service.log")
_STATUSES = ("completed", "failed", "cancelled")
_OF_CLAIMS = ("run.created", "run.started", "run.released")
"""Events that a kill adds, or that come before the run's first claim."""


@contextmanager
def database(directory: Path) -> Iterator[str]:
    """Run a Postgres that the kills do not touch; yield its URL."""
    directory.mkdir()
    loop, server = asyncio.new_event_loop(), EmbeddedPostgres(directory)
    loop.run_until_complete(server.start())
    try:
        yield server.url.set(drivername="postgresql").render_as_string(hide_password=False)
    finally:
        loop.run_until_complete(server.stop())
        loop.close()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Watched:
    """A run under a service that is down at times."""

    def __init__(self, service: Service, run_id: str) -> None:
        self._service = service
        self.run_id = run_id

    def now(self) -> dict[str, Any] | None:
        """Return the run, or None if the service does not answer."""
        try:
            run: dict[str, Any] = self._service.run(self.run_id)
        except (ServiceUnreachable, ServiceRefused):
            return None
        return run

    def wait_until(self, done: Any, most_s: float) -> dict[str, Any] | None:
        """Return the run once the condition holds, or None when time is up."""
        until = time.monotonic() + most_s
        while time.monotonic() < until:
            if (run := self.now()) is not None and done(run):
                return run
            time.sleep(0.05)
        return None


def ended(run: dict[str, Any]) -> bool:
    return run["status"] in _STATUSES


def moved_from(before: tuple[Any, ...]) -> Any:
    """Return a predicate: the run has ended or progressed beyond `before`."""
    return lambda run: ended(run) or (run["progress"]["done"] is not None and where(run) != before)


def where(run: dict[str, Any]) -> tuple[Any, ...]:
    progress = run["progress"]
    return progress["iteration"], progress["phase"], progress["done"]


def post(service: Service, request: dict[str, Any]) -> str:
    """Start the run and return its id."""
    run_id: str = service.start_run(request)["run_id"]
    return run_id


def weights(data_dir: Path) -> str:
    """Return the SHA-256 of the newest checkpoint's weights, from its manifest."""
    newest = max((data_dir / "models" / "bench" / "killed" / "checkpoints").glob("[0-9]*"))
    manifest = json.loads((newest / "manifest.json").read_text())
    return f"step {manifest['step']}: {manifest['files']['model.safetensors']['sha256']}"


def kept_rollouts(url: str) -> set[str]:
    """Return the ids of the finished rollouts in the journal."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT value FROM journal WHERE name LIKE 'rollout/%'").fetchall()
    return {json.loads(zlib.decompress(value))["id"] for (value,) in rows}


def begun_iterations(url: str) -> int:
    """Count the iterations that have finished rollouts in the journal."""
    query = "SELECT count(DISTINCT iteration) FROM journal WHERE name LIKE 'rollout/%'"
    with psycopg.connect(url) as connection:
        [(count,)] = connection.execute(query).fetchall()
    return int(count)


def saved_rollouts(url: str) -> set[str]:
    """Return the ids of the saved trajectories."""
    with psycopg.connect(url) as connection:
        return {id for (id,) in connection.execute("SELECT id FROM trajectory").fetchall()}


def account(service: Service, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a run says of itself, without times and ids, which differ between equal runs."""
    events = [(each["type"], each["iteration"]) for each in service.events(run["run_id"])]
    return {
        "verdict": run["verdict"],
        "diagnoses": [
            (each["cause"], each["state"], each["first_iteration"], each["named_at_iteration"], each["summary"])
            for each in service.diagnosis(run["run_id"])["diagnoses"]
        ],
        "events": [event for event in events if event[0] not in _OF_CLAIMS],
    }


def undisturbed(directory: Path, request: dict[str, Any]) -> tuple[str, dict[str, Any], float]:
    """Return the hash of the weights, the run's account of itself, and the seconds that it took."""
    data_dir, port = directory / "undisturbed", free_port()
    data_dir.mkdir()
    with processes.service(data_dir, port) as child:
        service = Service(f"http://127.0.0.1:{port}")
        processes.wait_for(child, processes.answers(service))
        started = time.monotonic()
        run = Watched(service, post(service, request)).wait_until(ended, 3600)
        assert run is not None
        assert run["status"] == "completed", run["error"]
        return weights(data_dir), account(service, run), time.monotonic() - started


def killed(
    directory: Path, request: dict[str, Any], kills: int, between_s: tuple[float, float], rng: random.Random
) -> dict[str, Any]:
    """Drive the same run and kill its service up to `kills` times."""
    data_dir, port = directory / "killed", free_port()
    data_dir.mkdir()
    hits: Counter[str] = Counter()
    ahead = 0
    moved_s: list[float] = []
    kept: set[str] = set()
    run_id, last = "", ()
    restarts = Restarts(data_dir / "service.log")
    with database(directory / "postgres") as url:
        os.environ["DATABASE_URL"] = url
        service = Service(f"http://127.0.0.1:{port}", timeout_s=5)
        while True:
            started = time.time()
            with processes.service(data_dir, port) as child:
                processes.wait_for(child, processes.answers(service))
                restarted, run_id = bool(run_id), run_id or post(service, request)
                watched = Watched(service, run_id)
                run = watched.wait_until(moved_from(last), 300)
                assert run is not None, f"the run does not move on: {watched.now()}"
                if restarted:
                    moved_s.append(time.time() - started)
                if not ended(run):
                    pause_s = rng.uniform(*between_s) if hits.total() < kills else 3600
                    run = watched.wait_until(ended, pause_s) or watched.now()
                assert run is not None
                restarts.read(started, count=restarted)
                if ended(run):
                    says = account(service, run)
                    break
                last, kept = where(run), kept | kept_rollouts(url)
                ahead += begun_iterations(url) > 1
                hits[str(run["progress"]["phase"])] += 1
                child.send_signal(signal.SIGKILL)
                child.wait()
        assert run["status"] == "completed", run["error"]
        return {
            "weights": weights(data_dir),
            "account": says,
            "kills": hits.total(),
            "hits": dict(hits),
            "kills_with_rollouts_ahead": ahead,
            "rollouts": run["rollouts"],
            "finished_rollouts_seen_at_kills": len(kept),
            "made_again": len(kept - saved_rollouts(url)),
            "restart_s": restarts.figures() | {"seen to move on": spread(moved_s)} if moved_s else {},
            "cost": run["cost"],
        }


def main() -> None:
    """Print the figures; fail if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--environment", default="email_search")
    parser.add_argument("--max-staleness", type=int, default=0, help="iterations that rollouts run ahead")
    parser.add_argument(
        "--seconds-between",
        type=float,
        nargs=2,
        default=(0.0, 6.0),
        metavar=("LEAST", "MOST"),
        help="from new progress to the next kill",
    )
    parser.add_argument("--max-completion-tokens", type=int, default=256, help="of a turn; few of them cut replies off")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    request = {
        **RUN,
        "iterations": options.iterations,
        "environment": {"name": options.environment},
        "pipeline": {"max_staleness": options.max_staleness},
        "max_completion_tokens": options.max_completion_tokens,
    }
    os.environ.pop("DATABASE_URL", None)
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        os.chdir(freeze(directory))  # every start must run the same code
        machine = processes.machine()
        expected, says, seconds = undisturbed(directory, request)
        calm = {"undisturbed_s": round(seconds, 1), "journal_percent": journal_percent(directory / _CALM_LOG)}
        rng = random.Random(options.seed)
        found = killed(directory, request, options.kills, tuple(options.seconds_between), rng)
    expectation = {"expected": expected, "expected_account": says}
    print(json.dumps({"machine": machine, "seed": options.seed, **expectation, **calm, **found}, indent=2))
    if found["weights"] != expected or found["made_again"] or found["account"] != says:
        raise SystemExit("the killed run is not what the undisturbed one was")
    if found["kills"] < options.kills:
        raise SystemExit(f"the run ended after {found['kills']} of {options.kills} kills: give it more --iterations")


if __name__ == "__main__":
    main()
