"""The journal of a run's unfinished iteration in the database. Entries are written in groups, under the run's lease."""

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import select, text, update

from app.aio.event_loops import run_on_loop
from app.aio.retry import LONG_S, retry_while_database_is_down
from app.db.session import Sessions
from app.db.tables import Journal, Run
from app.domain.event_types import EventType
from app.events.log import append
from app.runs.leases import Lease, LeaseLost, require
from training.journal import ALL_JUDGED, TRAINED
from training.phases import Phase

_GROUP_S = 0.05
"""Entries that come within this time are written together."""
_LEVEL = 1
"""zlib's fastest: a rollout's log-probabilities shrink to a fifth all the same."""
_COMPLETED = {ALL_JUDGED: (Phase.ROLLOUT, Phase.JUDGE), TRAINED: (Phase.TRAIN,)}
"""The phases that are complete once an entry of that name is kept."""

Row = tuple[int, str, bytes]
"""Iteration, name and compressed value."""

# One statement for any number of entries, so that it is built once. A commit whose reply was lost is tried again: what
# it wrote is there.
_WRITE = text(
    "INSERT INTO journal (run_id, epoch, iteration, name, value) "
    "SELECT :run_id, :epoch, entry.* FROM unnest(CAST(:iterations AS integer[]), CAST(:names AS text[]), "
    "CAST(:values AS bytea[])) AS entry ON CONFLICT DO NOTHING RETURNING iteration, name"
)


@dataclass
class Cost:
    """Seconds that a run waited for its journal, and seconds of writes beside which it went on."""

    waited_s: float = 0.0
    beside_s: float = 0.0

    @contextmanager
    def waited(self) -> Iterator[None]:
        clock = time.monotonic()
        try:
            yield
        finally:
            self.waited_s += time.monotonic() - clock

    @contextmanager
    def beside(self) -> Iterator[None]:
        clock = time.monotonic()
        try:
            yield
        finally:
            self.beside_s += time.monotonic() - clock


class StoredJournal:
    """For one run under one lease; used on the run's own event loop, written on the service's (`home`)."""

    def __init__(
        self,
        sessions: Sessions,
        lease: Lease,
        home: asyncio.AbstractEventLoop,
        on_lost: Callable[[], None],
    ) -> None:
        """`on_lost` is told that the lease is gone, where nobody waits for the write that found it out."""
        self._sessions = sessions
        self.cost = Cost()
        """Since somebody put a new one here."""
        self._lease = lease
        self._home = home
        self._on_lost = on_lost
        self._waiting: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    async def kept(self, iteration: int) -> Mapping[str, str]:
        """Raises LeaseLost: who comes too late would find the entries of a saved iteration gone, and do it again."""

        async def read() -> dict[str, str]:
            query = select(Journal.name, Journal.value).where(
                Journal.run_id == self._lease.run_id, Journal.iteration == iteration
            )
            async with self._sessions.begin() as session:
                await require(session, self._lease)
                rows = (await session.execute(query)).all()
            return {name: zlib.decompress(value).decode() for name, value in rows}

        with self.cost.waited():
            return dict(await run_on_loop(self._home, retry_while_database_is_down(read)))

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Raises LeaseLost."""
        with self.cost.waited():
            self._add(iteration, name, value)
            await self.flush()

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        with self.cost.waited():
            self._add(iteration, name, value)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GROUP_S, self._flush_soon)

    async def flush(self, at_most_s: float = LONG_S) -> None:
        """Everything that was kept so far survives us when this returns. Raises LeaseLost, and DATABASE_DOWN after
        `at_most_s` seconds of a database that is away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._writing:
            rows, self._waiting = self._waiting, []
            if rows:
                await run_on_loop(self._home, retry_while_database_is_down(lambda: self._write(rows), at_most_s))

    def _add(self, iteration: int, name: str, value: str) -> None:
        packed = zlib.compress(value.encode(), _LEVEL)
        self._waiting.append((iteration, name, packed))

    def _flush_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush_or_tell())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _flush_or_tell(self) -> None:
        try:
            with self.cost.beside():
                await self.flush()
        except LeaseLost:
            self._on_lost()

    async def _write(self, rows: list[Row]) -> None:
        async with self._sessions.begin() as session:
            await require(session, self._lease)
            iterations, names, values = (list(column) for column in zip(*rows, strict=True))
            mine = {"run_id": self._lease.run_id, "epoch": self._lease.epoch}
            entries = {"iterations": iterations, "names": names, "values": values}
            new = (await session.execute(_WRITE, mine | entries)).all()
            if not new:
                return
            await session.execute(update(Run).where(Run.id == self._lease.run_id).values(claims=0))
            for iteration, name in new:
                for phase in _COMPLETED.get(name, ()):
                    await append(
                        session,
                        self._lease.run_id,
                        EventType.PHASE_COMPLETED,
                        self._lease.actor,
                        {"phase": phase},
                        iteration=iteration,
                    )
