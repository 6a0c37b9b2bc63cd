"""The journal of a run's unfinished iteration in the database. Entries are written in groups, under the run's lease."""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from app.db import Sessions
from app.events import EventType, append
from app.models import Journal, Run
from app.runs.leases import Lease, LeaseLost, require
from app.runs.own_thread import on_loop
from app.runs.patience import patiently

_GROUP_S = 0.05
"""Entries that come within this time are written together."""
_LEVEL = 1
"""zlib's fastest: a rollout's log-probabilities shrink to a fifth all the same."""
_PHASES = {"judge/train": ("rollout", "judge"), "train": ("train",)}
"""Which phases are complete once an entry of that name is kept."""

Row = dict[str, Any]


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
        self._lease = lease
        self._home = home
        self._on_lost = on_lost
        self._waiting: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    async def kept(self, iteration: int) -> Mapping[str, str]:
        async def read() -> dict[str, str]:
            query = select(Journal.name, Journal.value).where(
                Journal.run_id == self._lease.run_id, Journal.iteration == iteration
            )
            async with self._sessions() as session:
                rows = (await session.execute(query)).all()
            return {name: zlib.decompress(value).decode() for name, value in rows}

        return dict(await on_loop(self._home, patiently(read)))

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Raises LeaseLost."""
        self._add(iteration, name, value)
        await self._flush()

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        self._add(iteration, name, value)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GROUP_S, self._flush_soon)

    async def flush(self) -> None:
        """Everything that was kept so far survives us when this returns. Raises LeaseLost."""
        await self._flush()

    def _add(self, iteration: int, name: str, value: str) -> None:
        self._waiting.append(
            {
                "run_id": self._lease.run_id,
                "iteration": iteration,
                "name": name,
                "epoch": self._lease.epoch,
                "value": zlib.compress(value.encode(), _LEVEL),
            }
        )

    def _flush_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush_or_tell())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _flush_or_tell(self) -> None:
        try:
            await self._flush()
        except LeaseLost:
            self._on_lost()

    async def _flush(self) -> None:
        """Write what waits, in order. Raises LeaseLost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._writing:
            rows, self._waiting = self._waiting, []
            if rows:
                await on_loop(self._home, patiently(lambda: self._write(rows)))

    async def _write(self, rows: list[Row]) -> None:
        async with self._sessions.begin() as session:
            await require(session, self._lease)
            # A commit whose reply was lost is tried again: what it wrote is there.
            write = insert(Journal).values(rows).on_conflict_do_nothing().returning(Journal.iteration, Journal.name)
            new = (await session.execute(write)).all()
            if not new:
                return
            await session.execute(update(Run).where(Run.id == self._lease.run_id).values(attempts=0))
            for iteration, name in new:
                for phase in _PHASES.get(name, ()):
                    await append(
                        session,
                        self._lease.run_id,
                        EventType.PHASE_COMPLETED,
                        self._lease.actor,
                        {"phase": phase},
                        iteration=iteration,
                    )
