"""What the kill benchmarks have in common: work that is done undisturbed and under kills, and compared at the end.

A service on a directory and a database of its own does the work. It is killed with SIGKILL some random time after the
work was seen to progress, and started again, until the work has ended.
"""

import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks import processes
from benchmarks.frozen_code import freeze
from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import Database, make_database, make_engine
from learnloop_service.app.db.migration import migrate
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from learnloop_service.app.processes.postgres import EmbeddedPostgres
from learnloop_service.app.runs.store import RunStore
from learnloop_service.environment.json_type import Json
from tests.fakes.stored_request import stored_run

_MOST_S = 3600.0
_START_S = 600.0
"""A busy machine needs minutes for the imports."""
_PROGRESS_S = 300.0
"""Longest wait for progress after a start."""


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a directory and work in a copy of the code there, so that every start runs the same code."""
    os.environ.pop("DATABASE_URL", None)
    with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        os.chdir(freeze(directory))
        yield directory


def address(url: URL) -> str:
    """Return the URL of a database as text, with its password."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def database(directory: Path) -> Iterator[str]:
    """Run a Postgres that the kills do not touch; yield its URL."""
    directory.mkdir()
    loop, server = asyncio.new_event_loop(), EmbeddedPostgres(directory)
    loop.run_until_complete(server.start())
    try:
        yield address(server.url)
    finally:
        loop.run_until_complete(server.stop())
        loop.close()


@dataclass(frozen=True)
class Migrated:
    """A Postgres that has today's tables."""

    postgres: EmbeddedPostgres
    engine: AsyncEngine
    database: Database

    @property
    def url(self) -> str:
        return address(self.postgres.url)


@asynccontextmanager
async def migrated(directory: Path) -> AsyncIterator[Migrated]:
    """Run a Postgres and make today's tables in it."""
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    engine = make_engine(postgres.url)
    try:
        await migrate(engine)
        yield Migrated(postgres, engine, make_database(engine))
    finally:
        await engine.dispose()
        await postgres.stop()


async def idle_run(database: Database, project: str) -> str:
    """Create a run that no worker claims; return its id."""
    run = stored_run(backend="none", model_project=project)
    await RunStore(database).create(run)
    return run.id


async def add_event(database: Database, run_id: str) -> int:
    """Append an event to the run's; return its number."""
    async with database.begin() as tx:
        return await append(tx, run_id, EventType.PHASE_COMPLETED, "bench", {"phase": "rollout"})


@dataclass(frozen=True)
class Serving:
    """A service that answers: its process, and a client of it."""

    child: "subprocess.Popen[bytes]"
    client: Service

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.child.kill()
        self.child.wait()


@contextmanager
def serving(
    data_dir: Path, port: int, settings: Mapping[str, str] = MappingProxyType({}), *, timeout_s: float = 60.0
) -> Iterator[Serving]:
    """Start a service with these environment variables, and yield it when it answers."""
    data_dir.mkdir(exist_ok=True)
    with answering(processes.service(data_dir, port, **settings), port, timeout_s=timeout_s) as it:
        yield it


@contextmanager
def answering(
    started: "AbstractContextManager[subprocess.Popen[bytes]]", port: int, *, timeout_s: float = 60.0
) -> Iterator[Serving]:
    """Start a service on that port, and yield it when it answers."""
    with started as child, Service(f"http://127.0.0.1:{port}", timeout_s=timeout_s) as client:
        processes.wait_for(child, processes.answers(client), most_s=_START_S)
        yield Serving(child, client)


class Victim(Protocol):
    """A process that can be killed."""

    def kill(self) -> object:
        """Kill it with SIGKILL."""


@dataclass
class Killer:
    """Kills one process after the other at random moments, and starts each again."""

    starts: Sequence[Callable[[], AbstractContextManager[Victim]]]
    """Start the processes; they can be entered again after a kill."""
    chance: random.Random
    most_s: float = 1.5
    """Longest time between two kills."""
    kills: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _running: dict[int, Victim] = field(default_factory=dict)

    async def start(self) -> None:
        """Start all of them."""
        for number in range(len(self.starts)):
            await self._start(number)

    async def kill(self, most: int) -> None:
        """Kill and start again until there were that many kills. All of them run afterwards."""
        while self.kills < most:
            await asyncio.sleep(self.chance.uniform(0.0, self.most_s))
            number = self.kills % len(self.starts)
            self._running[number].kill()
            self.kills += 1
            await self._start(number)

    def close(self) -> None:
        """Stop all of them."""
        self._stack.close()

    async def _start(self, number: int) -> None:
        self._running[number] = await asyncio.to_thread(self._stack.enter_context, self.starts[number]())


class Watched:
    """A run or evaluation at `path`, under a service that is down at times."""

    def __init__(self, service: Service, path: str) -> None:
        self.service = service
        self.path = path

    def now(self) -> Json:
        """Return its document, or None if the service does not answer."""
        try:
            return self.service.call("GET", self.path)
        except (ServiceUnreachable, ServiceRefused):
            return None

    def wait_until(self, holds: Callable[[Json], object], most_s: float) -> Json:
        """Return its document once the condition holds, or None when time is up."""
        until = time.monotonic() + most_s
        while time.monotonic() < until:
            if (document := self.now()) is not None and holds(document):
                return document
            time.sleep(0.05)
        return None

    def completed(self) -> Json:
        """Wait for its end and return its document. Raises AssertionError unless it completed."""
        document = self.wait_until(ended, _MOST_S)
        assert document is not None, f"it did not end: {self.now()}"
        assert document["status"] == "completed", document["error"]
        return document


def ended(document: Json) -> bool:
    return document["status"] in ("completed", "failed", "cancelled")


def weights(data_dir: Path) -> str:
    """Return the SHA-256 of the newest checkpoint's weights, from its manifest."""
    newest = max((data_dir / "models").glob("*/*/checkpoints/[0-9]*"), key=lambda path: path.name)
    manifest = json.loads((newest / "manifest.json").read_text())
    return f"step {manifest['step']}: {manifest['files']['model.safetensors']['sha256']}"


class Work(ABC):
    """Work that must end as if nothing had happened, whatever is killed."""

    @abstractmethod
    def start(self, service: Service) -> str:
        """Start it; return the path of its document."""

    @abstractmethod
    def moved(self, document: Json) -> bool:
        """Return whether it has progressed since the last kill."""

    @abstractmethod
    def was_killed(self, document: Json) -> None:
        """Note what is kept of it. `document` is what it was just before the kill."""

    @abstractmethod
    def account(self, service: Service, document: Json, data_dir: Path) -> Json:
        """Return what must not depend on kills."""


def undisturbed(work: Work, data_dir: Path) -> tuple[Json, float]:
    """Do the work; return its account and the seconds that it took."""
    with serving(data_dir, free_port()) as it:
        watched, began = Watched(it.client, work.start(it.client)), time.monotonic()
        document = watched.completed()
        seconds = time.monotonic() - began
        return work.account(it.client, document, data_dir), seconds


def killed(
    work: Work,
    data_dir: Path,
    kills: int,
    between_s: tuple[float, float],
    rng: random.Random,
    settings: Mapping[str, str],
    lived: Callable[[float, float, bool], None] | None = None,
) -> tuple[Json, Json, int]:
    """Do the work and kill its service up to `kills` times, each a random time after progress was seen.

    `settings` are the service's. `lived` gets of each service its start (Unix time), the seconds until progress, and
    whether it came after a kill. Returns the document, the account, and the number of kills.
    """
    port, path, kill_count = free_port(), "", 0
    while True:
        started = time.time()
        with serving(data_dir, port, settings, timeout_s=5) as it:
            path = path or work.start(it.client)
            watched = Watched(it.client, path)
            document = watched.wait_until(lambda now: ended(now) or work.moved(now), _PROGRESS_S)
            assert document is not None, f"it does not move on: {watched.now()}"
            moved_s = time.time() - started
            if not ended(document):
                pause_s = rng.uniform(*between_s) if kill_count < kills else _MOST_S
                document = watched.wait_until(ended, pause_s) or watched.now() or document
            if lived is not None:
                lived(started, moved_s, kill_count > 0)
            if ended(document):
                document = watched.completed()
                return document, work.account(it.client, document, data_dir), kill_count
            it.kill()
        work.was_killed(document)
        kill_count += 1


async def until(
    what: str, ask: Callable[[], Awaitable[Any]], is_reached: Callable[[Any], object], most_s: float
) -> None:
    """Wait until `is_reached` holds of what `ask` returns. Raises RuntimeError if that takes too long."""
    try:
        async with asyncio.timeout(most_s):
            while not is_reached(await ask()):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise RuntimeError(f"not within {most_s:.0f} s: {what}") from None


def report(measure: Callable[[Path], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Measure in a new directory and print the figures. Raises SystemExit if they have violations."""
    machine = processes.machine()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        figures = asyncio.run(measure(Path(directory)))
    judge(figures | {"machine": machine}, {"violations": []})


def judge(figures: Mapping[str, Json], must_be: Mapping[str, Json]) -> None:
    """Print the figures. Raises SystemExit with the names of those that are not as they must be."""
    print(json.dumps(figures, indent=2))
    if wrong := [name for name, value in must_be.items() if figures[name] != value]:
        raise SystemExit(f"kills left traces: {', '.join(wrong)}")
