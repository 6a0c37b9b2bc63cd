"""Race a worker against an owner's requests: a run or evaluation must end once and make only allowed transitions.

    python -m benchmarks.durability.races [--kind runs|evaluations] [--examples 1000] [--seed 0]

Uses a real Postgres. Each example starts a run or an evaluation and lets the worker's ending, the owner's requests and
sometimes another worker's claim race, with a random pause before every statement; then it is brought to its end. The
seed chooses the participants, but the order of statements depends on the machine. Exits with 1 if a log has a
transition that is not in the table, two ends, or an event after the end.
"""

import argparse
import asyncio
import random
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import event as database_event
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only
from ulid import ULID

from benchmarks.durability.harness import judge, migrated
from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database, make_database
from learnloop_service.app.db.tables import EvaluationEvent, EvaluationJob, Event, Run
from learnloop_service.app.domain.run_state import TERMINAL, Move, RunStatus
from learnloop_service.app.errors import NotAllowed
from learnloop_service.app.evaluations.claims import EvaluationClaims
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.store import RunStore
from tests.fakes.stored_request import stored_request, stored_run

_PAUSE_S = 0.002
"""Longest pause before a statement."""
_LEADS_TO = {
    "started": RunStatus.RUNNING,
    "released": RunStatus.QUEUED,
    "resumed": RunStatus.QUEUED,
    "retried": RunStatus.QUEUED,
    "paused": RunStatus.PAUSED,
    "completed": RunStatus.COMPLETED,
    "failed": RunStatus.FAILED,
    "cancelled": RunStatus.CANCELLED,
}
"""The status after an event, by the second part of the event's type."""
ENDINGS = ("completed", "failed", "cancelled", "paused", "release")
"""How a worker can end its work."""


class _Kind(ABC):
    """The operations of runs or of evaluations that the race needs."""

    table: type[Run] | type[EvaluationJob]
    store: Any
    verbs: Sequence[str]
    """Requests of an owner, repeated according to their weight."""
    reopened: str
    """The event that can follow an end."""
    moves: Set[Move] = frozenset(Move)

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    async def create(self, id: str) -> None: ...

    @abstractmethod
    def worker(self, name: str) -> Claims[Any]: ...

    @abstractmethod
    async def cancel_requested(self, lease: Lease[Any]) -> bool: ...

    @abstractmethod
    async def log(self, id: str) -> Sequence[Event | EvaluationEvent]: ...


class _Runs(_Kind):
    table = Run
    verbs = ("cancel", "cancel", "pause", "resume", "retry")
    reopened = "retried"
    moves = frozenset(Move) - {Move.REOPEN}

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.store = RunStore(database)

    async def create(self, id: str) -> None:
        await self.store.create(stored_run(id=id, request=stored_request(budget={})))

    def worker(self, name: str) -> RunClaims:
        limits, backends = Limits(), ["embedded"]
        return RunClaims(self.database, name, ttl_s=600, limits=limits, backends=backends, engine="none")

    async def cancel_requested(self, lease: Lease[Run]) -> bool:
        return (await RunStore(self.database).heartbeat(lease, None)).cancel

    async def log(self, id: str) -> Sequence[Event]:
        async with self.database() as tx:
            return (await tx.scalars(select(Event).where(Event.run_id == id).order_by(Event.seq))).all()


class _Evaluations(_Kind):
    table = EvaluationJob
    verbs = ("cancel", "cancel", "resume")
    reopened = "resumed"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.store = EvaluationStore(database)

    async def create(self, id: str) -> None:
        async with self.database.begin() as tx:
            tx.add(EvaluationJob(id=id, project="races", request={"models": []}, total=1))

    def worker(self, name: str) -> EvaluationClaims:
        return EvaluationClaims(self.database, name, ttl_s=600, engine="none")

    async def cancel_requested(self, lease: Lease[EvaluationJob]) -> bool:
        return await EvaluationStore(self.database).heartbeat(lease, None, 0.0)

    async def log(self, id: str) -> Sequence[EvaluationEvent]:
        query = select(EvaluationEvent).where(EvaluationEvent.evaluation_id == id)
        async with self.database() as tx:
            return (await tx.scalars(query.order_by(EvaluationEvent.seq))).all()


KINDS: Mapping[str, type[_Kind]] = {"runs": _Runs, "evaluations": _Evaluations}


@dataclass(frozen=True)
class _Stage:
    """A run or evaluation, its worker, and a second worker that steals it."""

    kind: _Kind
    claims: Claims[Any]
    thief: Claims[Any]
    lease: Lease[Any]

    def acts(self, ending: str, rng: random.Random) -> list[Callable[[], Awaitable[object]]]:
        """Return the racing acts: the worker's ending, one to three requests, and sometimes a theft."""
        verbs = rng.sample(self.kind.verbs, rng.randint(1, 3))
        acts: list[Callable[[], Awaitable[object]]] = [
            partial(self._end, ending),
            *(partial(self._ask, v) for v in verbs),
        ]
        return [*acts, self._steal] if rng.random() < 0.3 else acts

    async def _end(self, how: str) -> None:
        if how == "release":
            await self.claims.release(self.lease)
        elif how == "paused":
            await self.kind.store.suspend(self.lease, "asked for")
        else:
            await self.kind.store.finish(self.lease, RunStatus(how), error="so" if how == "failed" else None)

    async def _ask(self, verb: str) -> None:
        with suppress(NotAllowed):
            await getattr(self.kind.store, verb)(self.lease.id, "owner")

    async def _steal(self) -> None:
        past = func.clock_timestamp() - text("interval '1 second'")
        table = self.kind.table
        async with self.kind.database.begin() as tx:
            await tx.execute(
                update(table).where(table.id == self.lease.id, table.status == "running").values(lease_until=past)
            )
        await self.thief.claim()

    async def settle(self) -> None:
        """Bring it to its end, as its next worker would."""
        store = self.kind.store
        while (row := await store.get(self.lease.id)).status not in TERMINAL:
            if row.status == RunStatus.PAUSED:
                await store.resume(row.id, "owner")
            elif row.status == RunStatus.QUEUED:
                await self.claims.claim()
            else:
                lease = Lease(self.kind.table, row.id, row.epoch, str(row.owner))
                with suppress(LeaseLost):
                    cancelled = await self.kind.cancel_requested(lease)
                    await store.finish(lease, RunStatus.CANCELLED if cancelled else RunStatus.COMPLETED)


async def races(engine: AsyncEngine, kind: str, examples: int, seed: int) -> dict[str, Any]:
    """Return figures and `violations`. The database must have our schema and no other runs or evaluations."""
    of_kind, rng = KINDS[kind](make_database(engine)), random.Random(seed)
    _pause_by_chance(engine, random.Random(seed))
    endings: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(examples):
        stage = await _stage(of_kind)
        ending = rng.choice(ENDINGS)
        endings[ending] += 1
        acts = [_after(rng.uniform(0, _PAUSE_S), act) for act in stage.acts(ending, rng)]
        await asyncio.gather(*acts)
        await stage.settle()
        row = await of_kind.store.get(stage.lease.id)
        wrong += [f"example {number}: {violation}" for violation in violations(of_kind, row, await of_kind.log(row.id))]
        ends[row.status] += 1
    return {
        "kind": kind,
        "seed": seed,
        "examples": examples,
        "endings": dict(endings),
        "ends": dict(ends),
        "violations": wrong,
    }


def violations(kind: _Kind, row: Run | EvaluationJob, log: Sequence[Event | EvaluationEvent]) -> list[str]:
    """Describe every forbidden transition in the log."""
    wrong = []
    status, epoch = RunStatus.QUEUED, 0
    for event in log:
        happened = event.type.partition(".")[2]
        if status in TERMINAL and happened != kind.reopened:
            wrong.append(f"{event.type} after it was {status}")
        after = _LEADS_TO.get(happened, status)
        moves = (move for move in kind.moves if move.target is after)
        if happened in _LEADS_TO and not any(status in move.sources for move in moves):
            wrong.append(f"{event.type} while it was {status}")
        epoch += happened == "started"
        status = after
    if (row.status, row.epoch, [event.seq for event in log]) != (status, epoch, [*range(1, row.event_seq + 1)]):
        wrong.append(f"it is {row.status} in epoch {row.epoch}; its log says {status} in {epoch}, {len(log)} events")
    return wrong


async def _after(pause_s: float, act: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(pause_s)
    await act()


def _pause_by_chance(engine: AsyncEngine, rng: random.Random) -> None:
    def pause(*_: Any) -> None:
        await_only(asyncio.sleep(rng.uniform(0, _PAUSE_S)))

    database_event.listen(engine.sync_engine, "before_cursor_execute", pause)
    database_event.listen(engine.sync_engine, "commit", pause)


async def _stage(kind: _Kind) -> _Stage:
    await kind.create(str(ULID()))
    first, second = kind.worker("a"), kind.worker("b")
    claimed = await first.claim()
    assert claimed is not None
    return _Stage(kind, first, second, claimed[1])


async def _on_an_own_database(kind: str, examples: int, seed: int, directory: Path) -> dict[str, Any]:
    async with migrated(directory) as store:
        return await races(store.engine, kind, examples, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS), default="runs")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-races-") as directory:
        result = asyncio.run(_on_an_own_database(options.kind, options.examples, options.seed, Path(directory)))
    judge(result, {"violations": []})


if __name__ == "__main__":
    main()
