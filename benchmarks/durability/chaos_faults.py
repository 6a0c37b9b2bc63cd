"""The workers of the chaos benchmark, and who makes them and their database suffer."""

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

from app.processes.postgres import EmbeddedPostgres
from benchmarks.forks import Forked, Forks

FAULTS = {"kill": 50, "freeze": 20, "cut": 10, "crash": 10, "stop": 10}
"""Weights. kill: SIGKILL of a worker; freeze: SIGSTOP for two lease times; cut: all connections end; crash: of
Postgres; stop: SIGTERM of a worker."""


def open_forks(code: Path, directory: Path) -> Forks:
    """Starts processes of benchmarks/durability/chaos_worker.py, which log to `directory`/workers.log."""
    with (directory / "workers.log").open("ab") as log:
        return Forks("benchmarks.durability.chaos_worker", code, log)


def start_worker(forks: Forks, url: URL, directory: Path, *more: str, **given: float | str) -> Forked:
    """A worker; `given` and `more` are its flags."""
    given["database"] = url.set(drivername="postgresql").render_as_string(hide_password=False)
    flags = [f"--{name}={value}" for name, value in given.items()]
    return forks.start([f"--directory={directory}", *flags, *more])


@dataclass
class Workers:
    """A fixed number of worker processes; `mend` starts another for each that has ended."""

    url: URL
    code: Path
    """Where they find theirs."""
    directory: Path
    count: int
    ttl_s: float
    pace_s: float
    concurrent: int
    alive: dict[str, Forked] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    """Process ids."""
    started: int = 0

    def __post_init__(self) -> None:
        self._forks = open_forks(self.code, self.directory)

    def mend(self) -> None:
        """Start what is missing."""
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
        """Those that are alive and not frozen, by name."""
        there = self.alive.items()
        return {name: worker for name, worker in there if worker.poll() is None and worker.pid not in self.frozen}

    def close(self) -> None:
        """Kill all."""
        for worker in self.alive.values():
            worker.kill()
            worker.wait()
        self._forks.close()


class Nemesis:
    """Injects faults by chance; `injected` counts those that met something."""

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
        """The kinds of faults that have met nothing yet."""
        return [kind for kind in self._order if not self.injected[kind]]

    async def strike(self) -> None:
        """One fault: each kind once, then by their weights."""
        kind = self.missing[0] if self.missing else self._rng.choices([*FAULTS], [*FAULTS.values()])[0]
        if kind in ("cut", "crash"):
            met = await self._cut() if kind == "cut" else self._crash()
        else:
            met = await self._on_worker(kind)
        if met:
            self.injected[kind] += 1

    async def _on_worker(self, kind: str) -> bool:
        """One that drives a run, if there is one."""
        awake = self._workers.awake()
        if len(awake) < 2:  # somebody must be there to take over
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
        """Names of the workers that hold a lease; none if the database is down."""
        with suppress(psycopg.OperationalError):
            async with await connected(self._postgres.url) as admin:
                found = await admin.execute("SELECT DISTINCT owner FROM run WHERE status = 'running'")
                return {owner for (owner,) in await found.fetchall()}
        return set()

    async def _cut(self) -> bool:
        with suppress(psycopg.OperationalError):
            return await cut_connections(self._postgres.url) > 0
        return False

    def _crash(self) -> bool:
        """Half of the times the server stops at once and is started again, else it loses a child and recovers."""
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
            return False  # it is down already

    async def rest(self) -> None:
        """Let all go on: until nothing is frozen any more."""
        if self._thaws:
            await asyncio.wait(self._thaws)


async def cut_connections(url: URL, like: str = "%") -> int:
    """End every client's connection whose last statement is like that; how many there were."""
    async with await connected(url) as admin:
        ended = await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND query LIKE %s",
            (like,),
        )
        return len(await ended.fetchall())


async def connected(url: URL) -> psycopg.AsyncConnection[Any]:
    """A connection of our own, in which every statement is a transaction."""
    options = url.translate_connect_args(username="user", database="dbname") | dict(url.query)
    return await psycopg.AsyncConnection.connect(**options, autocommit=True)
