"""Events to whoever watches runs: read once for a process, however many watch.

One connection listens for NOTIFY, which only hints: what is sent while it is away is lost. So every reader goes by
sequence number, and looks by itself every few seconds.
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

from app.db import Sessions
from app.errors import DATABASE_DOWN
from app.events import CHANNEL
from app.models import Event
from app.stored_json import dumps

LOOK_S = 5.0
"""How long an event can go unseen after a lost hint."""
_KEPT = 500
"""Newest events of a watched run that are kept in memory."""
_AT_ONCE = 200
_RECONNECT_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as it is shown: `document` is its JSON text."""

    seq: int
    type: str
    document: str


@dataclass(eq=False)
class _Tail:
    """The newest events of one run, for its watchers."""

    watchers: int = 0
    events: deque[Shown] = field(default_factory=lambda: deque(maxlen=_KEPT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, events: Sequence[Shown]) -> None:
        self.events.extend(events)
        self.changed.set()
        self.changed = asyncio.Event()

    def after(self, seq: int) -> list[Shown] | None:
        """The events after that one, as far as they are kept; None if some are not."""
        if not self.events or self.events[0].seq > seq + 1:
            return None
        return list(dropwhile(lambda event: event.seq <= seq, self.events))


class EventFeed:
    """`start` before use, `close` after."""

    def __init__(self, sessions: Sessions, url: URL, on_hint: Callable[[], None]) -> None:
        """`on_hint` is called when anything happened to any run."""
        self._sessions = sessions
        self._url = url
        self._on_hint = on_hint
        self._tails: defaultdict[str, _Tail] = defaultdict(_Tail)
        self._listener: asyncio.Task[None] | None = None
        self._readers: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to listen."""
        self._listener = asyncio.create_task(self._listen_for_ever(), name="event-listener")

    async def close(self) -> None:
        """Stop listening."""
        tasks = {*self._readers, *([self._listener] if self._listener else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def read(self, run_id: str, after: int, limit: int) -> list[Shown]:
        """Events of a run after that sequence number, in order."""
        query = select(Event).where(Event.run_id == run_id, Event.seq > after).order_by(Event.seq).limit(limit)
        async with self._sessions() as session:
            return [_shown(row) for row in (await session.execute(query)).scalars()]

    async def watch(self, run_id: str, after: int) -> AsyncIterator[list[Shown]]:
        """The events after that sequence number, as they come; an empty list now and then when none did."""
        tail = self._tails[run_id]
        tail.watchers += 1
        try:
            while True:
                changed = tail.changed
                new = tail.after(after)
                if new is None:
                    new = await self._read_patiently(run_id, after)
                if new:
                    after = new[-1].seq
                    yield new
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await changed.wait()
                    continue
                if not tail.reading.locked():  # one looks for all: many stop waiting at the same moment
                    await self._refresh(run_id)
                yield []
        finally:
            tail.watchers -= 1
            if tail.watchers == 0:
                self._tails.pop(run_id, None)

    async def _read_patiently(self, run_id: str, after: int) -> list[Shown]:
        try:
            return await self.read(run_id, after, _AT_ONCE)
        except DATABASE_DOWN:
            return []

    async def _refresh(self, run_id: str) -> None:
        """Read what came after the newest event that is kept, once for all watchers."""
        if (tail := self._tails.get(run_id)) is None:
            return
        async with tail.reading:
            after = tail.events[-1].seq if tail.events else await self._newest(run_id)
            while new := await self._read_patiently(run_id, after):
                tail.add(new)
                after = new[-1].seq

    async def _newest(self, run_id: str) -> int:
        """One before the newest event: a tail begins with it, and watchers catch up by themselves."""
        query = select(Event.seq).where(Event.run_id == run_id).order_by(Event.seq.desc()).limit(1)
        with contextlib.suppress(*DATABASE_DOWN):
            async with self._sessions() as session:
                return ((await session.execute(query)).scalar_one_or_none() or 1) - 1
        return 0

    def _hint(self, run_id: str) -> None:
        self._on_hint()
        if run_id in self._tails:
            task = asyncio.create_task(self._refresh(run_id))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                log.warning("event listener reconnects", error=str(error).splitlines()[0] if str(error) else "lost")
            await asyncio.sleep(_RECONNECT_S)

    async def _listen(self) -> None:
        options = self._url.translate_connect_args(username="user", database="dbname") | dict(self._url.query)
        async with await psycopg.AsyncConnection.connect(**options, autocommit=True, connect_timeout=5) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            for run_id in list(self._tails):  # what came while nobody listened
                self._hint(run_id)
            async for notice in connection.notifies():
                self._hint(notice.payload)


def _shown(row: Event) -> Shown:
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
    """The event's document."""
    document: dict[str, object] = json.loads(event.document)
    return document
