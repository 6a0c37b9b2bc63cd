"""Runs and evaluations as work that workers claim, straight in the database."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from ulid import ULID

from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationEvent, EvaluationJob, Event, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.evaluations.claims import EvaluationClaims
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.worker.journal_store import StoredJournal
from tests.fakes.stored_request import stored_run


def worker(database: Database, name: str, price_per_hour: float | None = None, **limits: Any) -> RunClaims:
    return RunClaims(
        database, name, ttl_s=30, limits=Limits(**limits), backends=["embedded"], engine="here",
        price_per_hour=price_per_hour,
    )  # fmt: skip


async def queued(database: Database, **more: Any) -> str:
    run_id = str(ULID())
    names = {"model_project": "p", "model_name": run_id.lower()}
    await RunStore(database).create(stored_run(id=run_id, **(names | more)))
    return run_id


async def claimed(claims: Claims[Any]) -> Lease[Any]:
    found = await claims.claim()
    assert found is not None
    return found[1]


async def status_of(database: Database, run_id: str) -> str:
    return (await RunStore(database).get(run_id)).status


async def events(database: Database, run_id: str) -> list[tuple[int, str]]:
    async with database() as tx:
        rows = await tx.execute(select(Event.seq, Event.type).where(Event.run_id == run_id).order_by(Event.seq))
        return [(seq, type) for seq, type in rows]


async def lapse(database: Database, id: str, table: type[Run] | type[EvaluationJob] = Run) -> None:
    async with database.begin() as tx:
        past = func.clock_timestamp() - text("interval '1 second'")
        await tx.execute(update(table).where(table.id == id).values(lease_until=past))


@dataclass(frozen=True)
class Runs:
    """Runs as claimed work."""

    database: Database
    table = Run
    noun = "run"

    def worker(self, name: str) -> RunClaims:
        return worker(self.database, name)

    async def queue(self, project: str = "p", **columns: Any) -> str:
        return await queued(self.database, model_project=project, **columns)

    async def get(self, id: str) -> Run:
        return await RunStore(self.database).get(id)

    async def save(self, lease: Lease[Run], number: int) -> None:
        journal = StoredJournal(self.database, lease, asyncio.get_running_loop(), lambda: None)
        await journal.keep(0, f"rollout/test.greedy/{number}", "{}")

    def refused(self, lease: Lease[Run]) -> Sequence[Awaitable[object]]:
        """What raises LeaseLost where another worker has the lease."""
        return RunStore(self.database).heartbeat(lease, None), self.save(lease, 0)

    async def end(self, lease: Lease[Run]) -> None:
        """What does nothing there."""
        await RunStore(self.database).finish(lease, RunStatus.FAILED, error="a zombie says so")
        await RunStore(self.database).suspend(lease, "a zombie says so")

    async def log(self, id: str) -> list[tuple[int, str]]:
        return await events(self.database, id)


@dataclass(frozen=True)
class Evaluations:
    """Evaluations as claimed work."""

    database: Database
    table = EvaluationJob
    noun = "evaluation"

    def worker(self, name: str) -> EvaluationClaims:
        return EvaluationClaims(self.database, name, ttl_s=30, engine="here")

    async def queue(self, project: str = "p", **columns: Any) -> str:
        row = EvaluationJob(id=str(ULID()), project=project, request={"models": []}, total=1, **columns)
        async with self.database.begin() as tx:
            tx.add(row)
        return row.id

    async def get(self, id: str) -> EvaluationJob:
        return await EvaluationStore(self.database).get(id)

    async def save(self, lease: Lease[EvaluationJob], number: int) -> None:
        await EvaluationStore(self.database).keep_verdicts(lease, [], [])

    def refused(self, lease: Lease[EvaluationJob]) -> Sequence[Awaitable[object]]:
        """What raises LeaseLost where another worker has the lease."""
        store = EvaluationStore(self.database)
        return store.heartbeat(lease, None, 1.0), self.save(lease, 0), store.keep_rollout(lease, {"id": "t"})

    async def end(self, lease: Lease[EvaluationJob]) -> None:
        """What does nothing there."""
        store = EvaluationStore(self.database)
        await store.finish(lease, EvaluationStatus.FAILED, error="a zombie says so")
        await store.finish(lease, EvaluationStatus.COMPLETED, report={"models": []})
        await store.suspend(lease, "a zombie says so")
        await store.keep_lost(lease, {"usd": 1.0})

    async def log(self, id: str) -> list[tuple[int, str]]:
        """Its creation is part of no claim, so the log begins with the first one."""
        query = select(EvaluationEvent.seq, EvaluationEvent.type).where(EvaluationEvent.evaluation_id == id)
        async with self.database() as tx:
            return [(seq, type) for seq, type in await tx.execute(query.order_by(EvaluationEvent.seq))]


Kind = Runs | Evaluations


@pytest.fixture(params=[Runs, Evaluations], ids=["runs", "evaluations"])
def kind(request: pytest.FixtureRequest, database: Database) -> Any:
    return request.param(database)
