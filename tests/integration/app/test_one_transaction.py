"""What happens to a run, its event and the event's deliveries are one transaction: who dies in the middle did nothing.

The database itself ends the connection at the moment of a write, as it ends when the service is killed there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Select, select, text

from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.tables import Event, Iteration, Journal, Run, WebhookDelivery
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.app.worker.save_iteration import iteration_rows, save_iteration
from learnloop_service.training.backends.base import ModelSpec
from tests.fakes.scripted_learning import ScriptedPolicy, scripted_result
from tests.integration.app.webhook_stage import Stage, stage

Act = Callable[[Stage, Lease[Run]], Awaitable[object]]

_TOLD: tuple[Select[*tuple[Any, ...]], ...] = (
    select(Run.id, Run.status, Run.next_iteration, Run.event_seq, Run.error, Run.cancel_requested),
    select(Iteration.iteration),
    select(Journal.name),
    select(Event.seq, Event.type),
    select(WebhookDelivery.event_seq, WebhookDelivery.event_type),
)
"""What of a run must change together."""


async def save(here: Stage, lease: Lease[Run]) -> None:
    run = await RunStore(here.database).get(lease.id)
    policy = ScriptedPolicy(ModelSpec("p", run.model_name, "t"), "http://127.0.0.1:9/v1")
    await save_iteration(
        here.database, lease, iteration_rows(run, None, scripted_result(policy, 0, 0, 1, "an answer"), [])
    )


async def keep(here: Stage, lease: Lease[Run]) -> None:
    journal = StoredJournal(here.database, lease, asyncio.get_running_loop(), lambda: None)
    await journal._write([(0, "train", b"", 0)])


async def finish(here: Stage, lease: Lease[Run]) -> None:
    await RunStore(here.database).finish(lease, RunStatus.FAILED, error="it did not work")


async def cancel(here: Stage, lease: Lease[Run]) -> None:
    await RunStore(here.database).cancel(lease.id, "local")


async def release(here: Stage, lease: Lease[Run]) -> None:
    await _worker(here).release(lease)


@asynccontextmanager
async def deadly(here: Stage, table: str) -> AsyncIterator[None]:
    """Who writes to that table loses its connection before it can commit."""
    dies = "CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS "
    body = "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
    async with here.database.begin() as tx:
        await tx.execute(text(dies + body))
        await tx.execute(text(f"CREATE TRIGGER dies AFTER INSERT ON {table} EXECUTE FUNCTION dies()"))
    try:
        yield
    finally:
        async with here.database.begin() as tx:
            await tx.execute(text("DROP FUNCTION dies CASCADE"))


def _worker(here: Stage) -> RunClaims:
    return RunClaims(here.database, "w", ttl_s=600, limits=Limits(), backends=["b"], engine="here")


async def rows_of_run(here: Stage) -> list[list[tuple[Any, ...]]]:
    async with here.database() as tx:
        return [sorted(map(tuple, (await tx.execute(query)).all())) for query in _TOLD]


@pytest.mark.parametrize("table", ["event", "webhook_delivery"])
@pytest.mark.parametrize("act", [save, keep, finish, cancel, release])
async def test_what_happens_is_told_or_has_not_happened(database_url: str, act: Act, table: str) -> None:
    async with stage(database_url) as here:
        await here.endpoint("http://a.example/")
        run_id = await here.run()
        claimed = await _worker(here).claim()
        assert claimed is not None
        before = await rows_of_run(here)
        async with deadly(here, table):
            with pytest.raises(DATABASE_DOWN):
                await act(here, claimed[1])
        assert await rows_of_run(here) == before
        await act(here, claimed[1])  # as whoever comes after does it
        run, *_, events, deliveries = await rows_of_run(here)
        assert (run, events) != (before[0], before[3])
        assert [seq for seq, _ in events] == [*range(1, run[0][3] + 1)]
        assert deliveries == events
        assert run[0][0] == run_id
