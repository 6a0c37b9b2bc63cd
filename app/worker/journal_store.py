"""Stores the journal of a run's unfinished iteration. Entries are written in batches, under the run's lease.

Each entry has a checksum. A damaged entry is dropped when it is read, an event reports it, and its work is repeated.
"""

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.aio.retry import LONG_S
from learnloop_service.app.claims.lease import Lease, LeaseLost, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Journal, Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from learnloop_service.app.runs.journal_entries import text_of
from learnloop_service.app.worker.driven import query
from learnloop_service.training.journal import ALL_JUDGED, ALL_REPLACED, TRAINED, repair
from learnloop_service.training.phases import Phase

_BATCH_S = 0.05
"""Entries that arrive within this time, in seconds, are written together."""
_LEVEL = 1
"""zlib's fastest level, which still shrinks a rollout's log-probabilities to a fifth."""
_JUDGED, _TRAINED = (Phase.ROLLOUT, Phase.JUDGE), (Phase.TRAIN,)
"""Phases that end together."""

Row = tuple[int, str, bytes, int]
"""Iteration, name, compressed value and checksum."""

log = structlog.get_logger(__name__)

_WITHOUT_WAITING = text("SET LOCAL synchronous_commit TO off")

# One statement for any number of entries, so that it is built once. When a commit is retried because its reply was
# lost, its entries are already there.
_WRITE = text(
    "INSERT INTO journal (run_id, epoch, iteration, name, value, checksum) "
    "SELECT :run_id, :epoch, entry.* FROM unnest(CAST(:iterations AS integer[]), CAST(:names AS text[]), "
    "CAST(:values AS bytea[]), CAST(:checksums AS bigint[])) AS entry ON CONFLICT DO NOTHING RETURNING iteration, name"
)


@dataclass
class JournalTimes:
    """Seconds that a run waited for its journal, and seconds of writes in the background."""

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
    """The journal of one run under one lease.

    Used on the run's own event loop; written on the service's (`main_loop`).
    """

    def __init__(
        self,
        database: Database,
        lease: Lease[Run],
        main_loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[], None],
        *,
        replaces: bool = False,
    ) -> None:
        """`on_lost` is called when a background write finds that the lease is lost; `replaces` says whether the run
        replaces groups."""
        self._database = database
        self.cost = JournalTimes()
        """Times since the caller last replaced this object."""
        self._lease = lease
        self._main_loop = main_loop
        self._on_lost = on_lost
        self._verdicts = (ALL_JUDGED, ALL_REPLACED) if replaces else (ALL_JUDGED,)
        """Entries that end the rollout and judge phases, once all of them are stored."""
        self._waiting: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    async def kept(self, iteration: int) -> Mapping[str, str]:
        """Return the entries of an iteration. Raises LeaseLost.

        Without the lease, a worker could find the entries of a saved iteration deleted, and repeat it. Locking the
        lease makes this a writing transaction, whose commit would wait for the disk. A lock need not survive a power
        cut.
        """

        async def read() -> dict[str, str]:
            async with self._database.begin() as tx:
                await require(tx, self._lease)
                whole, damaged = await self._read(tx, iteration)
                if damaged:
                    await self._repair(tx, iteration, whole, damaged)
                else:
                    await tx.execute(_WITHOUT_WAITING)
            return whole

        with self.cost.waited():
            return dict(await query(self._main_loop, read))

    async def _read(self, tx: AsyncSession, iteration: int) -> tuple[dict[str, str], list[str]]:
        """Return the intact entries, and the names of the damaged ones."""
        entries = select(Journal.name, Journal.value, Journal.checksum).where(
            Journal.run_id == self._lease.id, Journal.iteration == iteration
        )
        whole, damaged = {}, []
        for name, value, checksum in (await tx.execute(entries)).all():
            text = None
            if checksum is None or checksum == self._checksum(iteration, name, value):
                text = text_of(value)
            if text is None:
                damaged.append(name)
            else:
                whole[name] = text
        return whole, sorted(damaged)

    async def _repair(self, tx: AsyncSession, iteration: int, whole: dict[str, str], damaged: list[str]) -> None:
        """Drop damaged entries and those that depend on them, from the table and `whole`, and append an event."""
        repairs = repair(whole, damaged)
        names = sorted(repairs.drop)
        log.error("journal entries damaged: their work is done again", run_id=self._lease.id, entries=names)
        of_iteration = (Journal.run_id == self._lease.id, Journal.iteration == iteration)
        await tx.execute(delete(Journal).where(*of_iteration, Journal.name.in_(names)))
        for name in names:
            whole.pop(name, None)
        if repairs.put:
            await self._insert(tx, [self._row(iteration, name, value) for name, value in repairs.put.items()])
            whole |= repairs.put
        data = {"damaged": damaged, "dropped": names}
        await append(tx, self._lease.id, EventType.JOURNAL_DAMAGED, self._lease.actor, data, iteration=iteration)

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Store an entry durably before returning. Raises LeaseLost."""
        with self.cost.waited():
            self._add(iteration, name, value)
            await self.flush()

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        with self.cost.waited():
            self._add(iteration, name, value)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_S, self._flush_soon)

    async def flush(self, at_most_s: float = LONG_S) -> None:
        """Write everything added so far. Raises LeaseLost, and DATABASE_DOWN after `at_most_s` of downtime."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._writing:
            rows, self._waiting = self._waiting, []
            if rows:
                await query(self._main_loop, lambda: self._write(rows), at_most_s)

    def _add(self, iteration: int, name: str, value: str) -> None:
        self._waiting.append(self._row(iteration, name, value))

    def _row(self, iteration: int, name: str, value: str) -> Row:
        packed = zlib.compress(value.encode(), _LEVEL)
        return iteration, name, packed, self._checksum(iteration, name, packed)

    def _checksum(self, iteration: int, name: str, packed: bytes) -> int:
        return zlib.crc32(packed, zlib.crc32(f"{self._lease.id}/{iteration}/{name}".encode()))

    def _flush_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush_in_background())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _flush_in_background(self) -> None:
        try:
            with self.cost.beside():
                await self.flush()
        except LeaseLost:
            self._on_lost()

    async def _write(self, rows: list[Row]) -> None:
        async with self._database.begin() as tx:
            await require(tx, self._lease)
            new = await self._insert(tx, rows)
            if not new:
                return
            await tx.execute(update(Run).where(Run.id == self._lease.id).values(claims=0))
            for iteration in sorted({iteration for iteration, name in new if name in self._verdicts}):
                if await self._is_judged(tx, iteration):
                    await self._completed(tx, iteration, _JUDGED)
            for iteration in (iteration for iteration, name in new if name == TRAINED):
                await self._completed(tx, iteration, _TRAINED)

    async def _is_judged(self, tx: AsyncSession, iteration: int) -> bool:
        stored = select(func.count()).where(
            Journal.run_id == self._lease.id, Journal.iteration == iteration, Journal.name.in_(self._verdicts)
        )
        return (await tx.execute(stored)).scalar_one() == len(self._verdicts)

    async def _completed(self, tx: AsyncSession, iteration: int, phases: Sequence[Phase]) -> None:
        lease = self._lease
        for phase in phases:
            data = {"phase": phase}
            await append(tx, lease.id, EventType.PHASE_COMPLETED, lease.actor, data, iteration=iteration)

    async def _insert(self, tx: AsyncSession, rows: list[Row]) -> list[tuple[int, str]]:
        """Insert the rows that are new, and return their iterations and names."""
        iterations, names, values, checksums = (list(column) for column in zip(*rows, strict=True))
        lease_fields = {"run_id": self._lease.id, "epoch": self._lease.epoch}
        entries = {"iterations": iterations, "names": names, "values": values, "checksums": checksums}
        new = (await tx.execute(_WRITE, lease_fields | entries)).all()
        return [(iteration, name) for iteration, name in new]
