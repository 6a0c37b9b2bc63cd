"""Races what a worker and its run's owner do at the same moment: a run ends once, and moves only as it may.

    python -m benchmarks.durability.races [--examples 1000] [--seed 0]

A real Postgres. Each example takes a run that is driven, and lets its worker's end, another worker's claim and what
its owner asks for run into each other, with a pause of chance before every statement; then the run is brought to its
end. The seed chooses who takes part; in which order the statements come is the machine's chance. Exits with 1 if any
log tells of a move that is none, of two ends, or of anything after the end.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import event, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only
from ulid import ULID

from app.db.migration import migrate
from app.db.session import Sessions, make_engine, make_sessions
from app.db.tables import Event, Run
from app.domain.event_types import EventType
from app.domain.run_state import TERMINAL, Move, RunStatus
from app.errors import NotAllowed
from app.processes.postgres import EmbeddedPostgres
from app.runs.leases import Lease, LeaseLost, Leases, Limits
from app.runs.store import RunStore
from tests.fakes.stored_request import stored_request

_PAUSE_S = 0.002
"""Before a statement, at most."""
_LEADS_TO = {
    EventType.RUN_STARTED: RunStatus.RUNNING,
    EventType.RUN_RELEASED: RunStatus.QUEUED,
    EventType.RUN_RESUMED: RunStatus.QUEUED,
    EventType.RUN_RETRIED: RunStatus.QUEUED,
    EventType.RUN_PAUSED: RunStatus.PAUSED,
    EventType.RUN_COMPLETED: RunStatus.COMPLETED,
    EventType.RUN_FAILED: RunStatus.FAILED,
    EventType.RUN_CANCELLED: RunStatus.CANCELLED,
}
_OWNERS = ("cancel", "cancel", "pause", "resume", "retry")
_WORKERS = ("completed", "failed", "cancelled", "paused", "release")
_LIMITS = Limits()


@dataclass(frozen=True)
class _Stage:
    """One run, its worker and a second one."""

    sessions: Sessions
    store: RunStore
    leases: Leases
    thief: Leases
    lease: Lease

    def acts(self, rng: random.Random) -> list[Callable[[], Awaitable[object]]]:
        """Who takes part: the worker's end always, the others by chance."""
        ending = rng.choice(_WORKERS)
        asked = rng.sample(_OWNERS, rng.randint(1, 3))
        acts: list[Callable[[], Awaitable[object]]] = [
            partial(self._end, ending),
            *(partial(self._ask, v) for v in asked),
        ]
        return [*acts, self._steal] if rng.random() < 0.3 else acts

    async def _end(self, how: str) -> None:
        if how == "release":
            await self.leases.release(self.lease)
        elif how == "paused":
            await self.store.suspend(self.lease, "asked for")
        else:
            await self.store.finish(self.lease, RunStatus(how), error="so" if how == "failed" else None)

    async def _ask(self, verb: str) -> None:
        with suppress(NotAllowed):
            await getattr(self.store, verb)(self.lease.run_id, "owner")

    async def _steal(self) -> None:
        past = func.clock_timestamp() - text("interval '1 second'")
        async with self.sessions.begin() as session:
            await session.execute(
                update(Run).where(Run.id == self.lease.run_id, Run.status == "running").values(lease_until=past)
            )
        await self.thief.claim()

    async def settle(self) -> None:
        """Bring the run to its end, as its next worker would."""
        while (run := await self.store.get(self.lease.run_id)).status not in TERMINAL:
            if run.status == RunStatus.PAUSED:
                await self.store.resume(run.id, "owner")
            elif run.status == RunStatus.QUEUED:
                await self.leases.claim()
            else:
                lease = Lease(run.id, run.epoch, str(run.owner))
                with suppress(LeaseLost):
                    pending = await self.store.heartbeat(lease, None)
                    await self.store.finish(lease, RunStatus.CANCELLED if pending.cancel else RunStatus.COMPLETED)


async def races(engine: AsyncEngine, examples: int, seed: int) -> dict[str, Any]:
    """Figures, and `violations`. The database must have our schema, and no other run."""
    sessions, rng = make_sessions(engine), random.Random(seed)
    _pause_by_chance(engine, rng)
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(examples):
        stage = await _stage(sessions)
        acts = [_after(rng.uniform(0, _PAUSE_S), act) for act in stage.acts(rng)]
        await asyncio.gather(*acts)
        await stage.settle()
        run = await stage.store.get(stage.lease.run_id)
        async with sessions() as session:
            log = (await session.scalars(select(Event).where(Event.run_id == run.id).order_by(Event.seq))).all()
        wrong += [f"example {number}: {each}" for each in violations(run, log)]
        ends[run.status] += 1
    return {"seed": seed, "examples": examples, "ends": dict(ends), "violations": wrong}


def violations(run: Run, log: Sequence[Event]) -> list[str]:
    """What the log tells that must not be."""
    wrong = []
    status, epoch = RunStatus.QUEUED, 0
    for told in log:
        if status in TERMINAL and told.type != EventType.RUN_RETRIED:
            wrong.append(f"{told.type} after it was {status}")
        after = _LEADS_TO.get(EventType(told.type), status)
        if told.type in _LEADS_TO and not any(status in move.sources for move in Move if move.target is after):
            wrong.append(f"{told.type} while it was {status}")
        if told.type == EventType.RUN_STARTED:
            epoch += 1
        status = after
    if (run.status, run.epoch, [told.seq for told in log]) != (status, epoch, [*range(1, run.event_seq + 1)]):
        wrong.append(f"it is {run.status} in epoch {run.epoch}; its log says {status} in {epoch}, {len(log)} events")
    return wrong


async def _after(pause_s: float, act: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(pause_s)
    await act()


def _pause_by_chance(engine: AsyncEngine, rng: random.Random) -> None:
    def pause(*_: Any) -> None:
        await_only(asyncio.sleep(rng.uniform(0, _PAUSE_S)))

    event.listen(engine.sync_engine, "before_cursor_execute", pause)
    event.listen(engine.sync_engine, "commit", pause)


async def _stage(sessions: Sessions) -> _Stage:
    store, run_id = RunStore(sessions), str(ULID())
    run = Run(
        id=run_id,
        request=stored_request(budget={}),
        environment="email_search",
        judge="reference",
        backend="embedded",
        model_project="races",
        model_name=run_id,
        base_model="none",
        iterations_total=1,
    )
    await store.create(run)
    first, second = (
        Leases(sessions, name, ttl_s=600, limits=_LIMITS, backends=["embedded"], engine="none") for name in "ab"
    )
    claimed = await first.claim()
    assert claimed is not None
    return _Stage(sessions, store, first, second, claimed[1])


async def _on_a_database_of_its_own(examples: int, seed: int, directory: Path) -> dict[str, Any]:
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    engine = make_engine(postgres.url)
    try:
        await migrate(engine)
        return await races(engine, examples, seed)
    finally:
        await engine.dispose()
        await postgres.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-races-") as directory:
        result = asyncio.run(_on_a_database_of_its_own(options.examples, options.seed, Path(directory)))
    for name, value in result.items():
        print(f"{name:>12}  {value}")
    raise SystemExit(1 if result["violations"] else 0)


if __name__ == "__main__":
    main()
