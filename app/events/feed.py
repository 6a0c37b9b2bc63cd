"""Delivers events to the watchers of runs. Each event is read once per process, however many watchers there are.

One connection listens for NOTIFY, which is only a hint: notifications are lost while it is disconnected. Readers
therefore go by sequence number, and one query per second checks how far all watched runs are. It finds events whose
notification was lost, and the progress that watchers see between two events.
"""

import asyncio
import contextlib
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

import psycopg
import structlog
from sqlalchemy import URL, select

from learnloop_service.app.db.connecting import connect, is_pooled
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import dumps
from learnloop_service.app.db.tables import Event
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.events.log import CHANNEL
from learnloop_service.app.events.progress import Moved, Position, positions_of
from learnloop_service.app.events.stream_limit import StreamPlaces
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment.first_line import first_line

LOOK_S = 1.0
"""Polling interval: longest time that an event goes unseen after a lost notification.

It is also the minimum time between progress messages.
"""
_POOLED_S = 3600.0
"""Time before the listener looks whether there still is a pooler. Events are polled meanwhile."""
_KEEP_ALIVE_S = 5.0
_KEPT = 500
"""Number of newest events kept in memory per watched run."""
_AT_ONCE = 200
_RECONNECT_S = (0.05, 1.0)
"""Delays before the listener reconnects: the first one, and the maximum; each is twice as long as the one before."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as clients see it. `document` is its JSON text."""

    seq: int
    type: str
    document: str


@dataclass(eq=False)
class _Tail:
    """The newest events and the progress of one run, for its watchers."""

    watchers: int = 0
    events: deque[Shown] = field(default_factory=lambda: deque(maxlen=_KEPT))
    moved: Moved | None = None
    gone: bool = False
    """Whether the run was deleted."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, events: Sequence[Shown]) -> None:
        self.events.extend(events)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def after(self, seq: int) -> list[Shown] | None:
        """Return the events after that number; None if some of them are no longer kept."""
        if not self.events or self.events[0].seq > seq + 1:
            return None
        return list(dropwhile(lambda event: event.seq <= seq, self.events))


class EventFeed:
    """The events of runs, for their watchers. Call `start` before use and `close` after."""

    def __init__(self, database: Database, url: URL, on_hint: Callable[[], None]) -> None:
        """`on_hint` is called when anything happens to any run."""
        self.places = StreamPlaces()
        self._database = database
        self._url = url
        self._on_hint = on_hint
        self._tails: defaultdict[str, _Tail] = defaultdict(_Tail)
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start listening and polling."""
        self._tasks.add(asyncio.create_task(self._listen_for_ever(), name="event-listener"))
        self._tasks.add(asyncio.create_task(self._look_for_ever(), name="event-looker"))

    def end(self) -> None:
        """End all streams, which would not end by themselves, because the service is about to stop."""
        self._ended = True
        for tail in self._tails.values():
            tail.wake()

    async def close(self) -> None:
        """Stop listening and polling."""
        self.end()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def read(self, run_id: str, after: int, limit: int) -> list[Shown]:
        """Return events of a run after that sequence number, in order."""
        query = select(Event).where(Event.run_id == run_id, Event.seq > after).order_by(Event.seq).limit(limit)
        async with self._database() as tx:
            return [_presented(row) for row in (await tx.execute(query)).scalars()]

    async def watch(self, run_id: str, after: int) -> AsyncIterator[list[Shown] | Moved]:
        """Yield new events after that sequence number, and the run's progress whenever it changes.

        Yields an empty list now and then if nothing happens. Ends when the run is deleted or `end` is called.
        """
        tail = self._tails[run_id]
        tail.watchers += 1
        last_progress: Moved | None = None
        try:
            while not (tail.gone or self._ended):
                changed = tail.changed
                new = tail.after(after)
                if new is None:
                    new = await self._read_retrying(run_id, after)
                if new:
                    after = new[-1].seq
                    yield new
                elif tail.moved is not None and tail.moved != last_progress:
                    last_progress = tail.moved
                    yield last_progress
                elif not await _changed_in_time(changed):
                    yield []
        finally:
            tail.watchers -= 1
            if tail.watchers == 0:
                self._tails.pop(run_id, None)

    async def _read_retrying(self, run_id: str, after: int) -> list[Shown]:
        try:
            return await self.read(run_id, after, _AT_ONCE)
        except DATABASE_DOWN:
            return []

    async def _refresh(self, run_id: str) -> None:
        """Read the events after the newest one kept, once for all watchers."""
        if (tail := self._tails.get(run_id)) is None:
            return
        async with tail.reading:
            after = tail.events[-1].seq if tail.events else await self._newest(run_id)
            while new := await self._read_retrying(run_id, after):
                tail.add(new)
                after = new[-1].seq

    async def _newest(self, run_id: str) -> int:
        """Return the number before the newest event, so that a tail starts with that event.

        Watchers read earlier events themselves.
        """
        query = select(Event.seq).where(Event.run_id == run_id).order_by(Event.seq.desc()).limit(1)
        with contextlib.suppress(*DATABASE_DOWN):
            async with self._database() as tx:
                return ((await tx.execute(query)).scalar_one_or_none() or 1) - 1
        return 0

    async def _look_for_ever(self) -> None:
        repeated = RepeatedLog(log)
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._poll()
            except DATABASE_DOWN:
                pass  # the API already reports that
            except Exception as error:
                repeated.error("watched runs could not be looked at, trying again", exc_info=error)

    async def _poll(self) -> None:
        if not (watched := list(self._tails)):
            return
        positions = await positions_of(self._database, watched)
        for run_id in watched:
            if (tail := self._tails.get(run_id)) is not None:
                await self._note(run_id, tail, positions.get(run_id))

    async def _note(self, run_id: str, tail: _Tail, position: Position | None) -> None:
        if position is None:
            tail.gone = True
            tail.wake()
            return
        if not tail.events or tail.events[-1].seq < position.event_seq:
            await self._refresh(run_id)
        if position.moved != tail.moved:
            tail.moved = position.moved
            tail.wake()

    def _hint(self, run_id: str) -> None:
        self._on_hint()
        if run_id in self._tails:
            task = asyncio.create_task(self._refresh(run_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _listen_for_ever(self) -> None:
        repeated = RepeatedLog(log)
        first_s, longest_s = _RECONNECT_S
        pause_s = first_s
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                cause = first_line(error)
                repeated.warning("event listener reconnects", error=cause)
            lasted_s = asyncio.get_running_loop().time() - began
            pause_s = first_s if lasted_s > longest_s else min(2 * pause_s, longest_s)
            await asyncio.sleep(pause_s)

    async def _listen(self) -> None:
        async with await connect(self._url, connect_timeout=5) as connection:
            if is_pooled(connection):
                log.warning("a pooler does not pass on notifications: set DIRECT_DATABASE_URL, or events are seen late")
                return await asyncio.sleep(_POOLED_S)
            await connection.execute(f"LISTEN {CHANNEL}")
            for run_id in list(self._tails):  # catches up on what was missed while not listening
                self._hint(run_id)
            async for notice in connection.notifies():
                self._hint(notice.payload)


async def _changed_in_time(changed: asyncio.Event) -> bool:
    """Return whether `changed` is set before the watcher's connection needs a keep-alive."""
    # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the event.
    try:
        async with asyncio.timeout(_KEEP_ALIVE_S):
            return await changed.wait()
    except TimeoutError:
        return False


def _presented(row: Event) -> Shown:
    document = {
        "seq": row.seq,
        "type": row.type,
        "version": row.version,
        "run_id": row.run_id,
        "iteration": row.iteration,
        "actor": row.actor,
        "occurred_at": row.occurred_at.isoformat(timespec="milliseconds"),
        "data": row.data,
    }
    return Shown(row.seq, row.type, dumps(document))


def parsed(event: Shown) -> dict[str, object]:
    """Return the event's document."""
    document: dict[str, object] = json.loads(event.document)
    return document
