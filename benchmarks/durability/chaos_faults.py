"""The chaos benchmark's workers, and the faults that hit them and their database."""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from sqlalchemy import URL

from benchmarks.forks import Forked, Forks
from learnloop_service.app.db.connecting import connection_parameters
from learnloop_service.app.processes.postgres import EmbeddedPostgres

FAULTS = {"kill": 50, "freeze": 20, "cut": 10, "crash": 10, "stop": 10}
"""Relative frequency of each fault. kill: SIGKILL to a worker; freeze: SIGSTOP for two lease times; cut: end all
connections; crash: crash Postgres; stop: SIGTERM to a worker."""


def open_forks(code: Path, directory: Path) -> Forks:
    """Start a fork server for benchmarks/durability/chaos_worker.py; workers log to `directory`/workers.log."""
    with (directory / "workers.log").open("ab") as log:
        return Forks("benchmarks.durability.chaos_worker", code, log)


def start_worker(forks: Forks, url: URL, directory: Path, *more: str, **options: float | str) -> Forked:
    """Start a worker with the flags in `options` and `more`."""
    options["database"] = url.set(drivername="postgresql").render_as_string(hide_password=False)
    flags = [f"--{name}={value}" for name, value in options.items()]
    return forks.start([f"--directory={directory}", *flags, *more])


@dataclass
class Workers:
    """A fixed number of worker processes; `mend` replaces those that have ended."""

    url: URL
    code: Path
    """The code snapshot that the workers run."""
    directory: Path
    count: int
    ttl_s: float
    pace_s: float
    concurrent: int
    alive: dict[str, Forked] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    """Process ids of frozen workers."""
    started: int = 0

    def __post_init__(self) -> None:
        self._forks = open_forks(self.code, self.directory)

    def mend(self) -> None:
        """Start a worker for each one missing."""
        self.alive = {name: worker for name, worker in self.alive.items() if worker.poll() is None}
        while len(self.alive) < self.count:
            self.started += 1
            name = f"worker-{self.started}"
            self.alive[name] = start_worker(
                self._forks,
                self.url,
                self.directory,
                name=name,
                ttl=self.ttl_s,
                pace=self.pace_s,
                concurrent=self.concurrent,
            )

    def awake(self) -> dict[str, Forked]:
        """Return the workers that are alive and not frozen, by name."""
        there = self.alive.items()
        return {name: worker for name, worker in there if worker.poll() is None and worker.pid not in self.frozen}

    def close(self) -> None:
        """Kill all workers."""
        for worker in self.alive.values():
            worker.kill()
            worker.wait()
        self._forks.close()


class Nemesis:
    """Injects random faults; `injected` counts those that hit something."""

    def __init__(self, workers: Workers, postgres: EmbeddedPostgres, rng: random.Random) -> None:
        self._workers = workers
        self._postgres = postgres
        self._rng = rng
        self._thaws: set[asyncio.Task[None]] = set()
        self.injected: Counter[str] = Counter()
        self._order = [*FAULTS]
        rng.shuffle(self._order)

    @property
    def missing(self) -> list[str]:
        """The kinds of faults that have not hit anything yet."""
        return [kind for kind in self._order if not self.injected[kind]]

    async def strike(self) -> None:
        """Inject one fault: each kind once, then by weight."""
        kind = self.missing[0] if self.missing else self._rng.choices([*FAULTS], [*FAULTS.values()])[0]
        if kind in ("cut", "crash"):
            met = await self._cut() if kind == "cut" else self._crash()
        else:
            met = await self._on_worker(kind)
        if met:
            self.injected[kind] += 1

    async def _on_worker(self, kind: str) -> bool:
        """Hit a worker that drives a run if there is one, else any awake worker."""
        awake = self._workers.awake()
        if len(awake) < 2:  # one has to stay to take over
            return False
        driving = sorted(await self._owners() & set(awake))
        worker = awake[self._rng.choice(driving or sorted(awake))]
        if kind == "freeze":
            self._freeze(worker)
        else:
            worker.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        return True

    def _freeze(self, worker: Forked) -> None:
        worker.send_signal(signal.SIGSTOP)
        self._workers.frozen.add(worker.pid)
        thaw = asyncio.create_task(self._thaw(worker))
        self._thaws.add(thaw)
        thaw.add_done_callback(self._thaws.discard)

    async def _thaw(self, worker: Forked) -> None:
        await asyncio.sleep(2 * self._workers.ttl_s)
        self._workers.frozen.discard(worker.pid)
        worker.send_signal(signal.SIGCONT)

    async def _owners(self) -> set[str]:
        """Return the names of the workers that hold a lease, or none if the database is down."""
        with suppress(psycopg.OperationalError):
            async with await connected(self._postgres.url) as admin:
                cursor = await admin.execute("SELECT DISTINCT owner FROM run WHERE status = 'running'")
                return {owner for (owner,) in await cursor.fetchall()}
        return set()

    async def _cut(self) -> bool:
        with suppress(psycopg.OperationalError):
            return await cut_connections(self._postgres.url) > 0
        return False

    def _crash(self) -> bool:
        """Either stop the server immediately or kill one of its children, which makes it recover."""
        try:
            server = psutil.Process(int((self._postgres.pgdata / "postmaster.pid").read_text().splitlines()[0]))
            if self._rng.random() < 0.5:
                server.send_signal(signal.SIGQUIT)
                return True
            children = server.children()
            if children:
                os.kill(self._rng.choice(children).pid, signal.SIGKILL)
            return bool(children)
        except (OSError, ValueError, IndexError, psutil.Error):
            return False  # already down

    async def rest(self) -> None:
        """Wait until every frozen worker has been thawed."""
        if self._thaws:
            await asyncio.wait(self._thaws)


async def cut_connections(url: URL, like: str = "%") -> int:
    """Terminate every client connection whose last statement matches the LIKE pattern; return how many there were."""
    async with await connected(url) as admin:
        ended = await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND query LIKE %s",
            (like,),
        )
        return len(await ended.fetchall())


async def connected(url: URL) -> psycopg.AsyncConnection[Any]:
    """Open a separate connection in autocommit mode."""
    options = connection_parameters(url)
    return await psycopg.AsyncConnection.connect(**options, autocommit=True)
