"""Leases, commits, deliveries, verbs and crashes in any order: the real store on a real Postgres against a small model.

LEARNLOOP_SEQUENCES is how many orders are tried; by default as many as a quick test can. With LEARNLOOP_SHRINK=0 the
first one that fails is not made shorter, which takes minutes.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import URL, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.claims.claims import MAX_CLAIMS
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database, make_database, make_engine
from learnloop_service.app.db.migration import migrate
from learnloop_service.app.db.tables import Event, Iteration, Run, WebhookDelivery, WebhookEndpoint
from learnloop_service.app.domain.run_state import TERMINAL, Move, RunStatus, Verb, allowed
from learnloop_service.app.errors import NotAllowed
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.webhooks.queue import claim, record_attempt
from learnloop_service.app.webhooks.sender import SendResult
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.app.worker.save_iteration import iteration_rows, save_iteration
from learnloop_service.training.backends.base import ModelSpec
from tests.fakes.crashes import Crashes, Died
from tests.fakes.scripted_learning import ScriptedPolicy, scripted_result
from tests.fakes.stored_request import stored_run

Result = TypeVar("Result")
_SEQUENCES = int(os.environ.get("LEARNLOOP_SEQUENCES", "25"))
_PHASES = (Phase.generate,) if os.environ.get("LEARNLOOP_SHRINK") == "0" else tuple(Phase)
_ITERATIONS = 50
_ENDS = {f"run.{status}" for status in TERMINAL}
_ENDINGS = {
    RunStatus.COMPLETED: Move.COMPLETE,
    RunStatus.FAILED: Move.FAIL,
    RunStatus.CANCELLED: Move.STOP,
}
_LEASES = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
"""Number of newer leases. Mostly the newest lease is drawn, because the others can hardly commit anything."""
_CRASH = st.sampled_from([*[None] * 48, *range(16)])
"""Number of statements that the worker still sends. Mostly it survives, because little would get done otherwise."""
_AHEAD = st.sampled_from([0, 0, 0, 0, 1, -1])
"""Distance from the iteration that is due."""


class LeaseMachine(RuleBasedStateMachine):
    """One run, two workers that die, an impatient owner and a receiver. Rules and invariants check what is expected."""

    def __init__(self, runner: asyncio.Runner, database: Database, crashes: Crashes) -> None:
        super().__init__()
        self._runner = runner
        self._database = database
        self._crashes = crashes
        self._store = RunStore(database)
        self._workers = [
            RunClaims(database, name, ttl_s=60, limits=Limits(), backends=["embedded"], engine="here") for name in "ab"
        ]
        self._given: list[Lease[Run]] = []
        self._status = RunStatus.QUEUED
        self._lapsed = False
        self._claims = 0
        self._done = 0
        self._entries = 0
        self._cancel = self._pause = False
        self._seen: tuple[int, int] = (0, 0)
        self._delivered: list[int | None] = []

    def _do(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(act)

    @contextmanager
    def _dying(self, crash: int | None) -> Iterator[None]:
        """The worker may die within the block: then nothing of what it did has happened."""
        with suppress(Died), self._crashes.after(crash):
            yield

    @initialize()
    def accept(self) -> None:
        self._id = str(ULID())
        run = stored_run(id=self._id, iterations_total=_ITERATIONS)
        self._do(self._store.create(run, also=self._listen))

    async def _listen(self, tx: AsyncSession) -> None:
        tx.add(WebhookEndpoint(id=self._id, run_id=self._id, url="http://receiver.example", events=[]))
        await tx.flush()

    def teardown(self) -> None:
        self._do(self._forget())

    async def _forget(self) -> None:
        async with self._database.begin() as tx:
            await tx.execute(delete(Run))

    def _lease(self, back: int) -> Lease[Run] | None:
        return self._given[-1 - back] if back < len(self._given) else None

    def _holds(self, lease: Lease[Run]) -> bool:
        return self._status is RunStatus.RUNNING and lease == self._given[-1]

    def _move(self, move: Move) -> None:
        assert self._status in move.sources
        self._status, self._lapsed = move.target, False

    @rule(worker=st.integers(0, 1), crash=_CRASH)
    def claim(self, worker: int, crash: int | None) -> None:
        claims = self._workers[worker]
        free = self._status is RunStatus.QUEUED or (self._status is RunStatus.RUNNING and self._lapsed)
        # A worker that could not renew its lease in time, and did not end: that is no attempt that failed.
        again = self._status is RunStatus.RUNNING and self._given[-1].worker == claims.worker
        with self._dying(crash):
            claimed = self._do(claims.claim())
            assert (claimed is not None) == (free and (again or self._claims < MAX_CLAIMS))
            if claimed is not None:
                assert claimed[1].epoch == len(self._given) + 1
                self._given.append(claimed[1])
                self._claims += not again
                self._move(Move.CLAIM)
            elif free:
                self._move(Move.GIVE_UP)

    @rule(forward=st.sampled_from([True, True, True, False]))
    def time_passes(self, forward: bool) -> None:
        """Or the database's clock is set back."""
        if self._status is RunStatus.RUNNING:
            self._do(self._leave(seconds=-1 if forward else 3600))
            self._lapsed = forward

    async def _leave(self, seconds: int) -> None:
        """The lease so much time from now."""
        end = func.clock_timestamp() + text(f"interval '{seconds} second'")
        async with self._database.begin() as tx:
            await tx.execute(update(Run).where(Run.id == self._id).values(lease_until=end))

    @rule(back=_LEASES)
    def beat(self, back: int) -> None:
        if (lease := self._lease(back)) is None:
            return
        try:
            pending = self._do(self._store.heartbeat(lease, None))
        except LeaseLost:
            assert not self._holds(lease)
        else:
            assert self._holds(lease)
            assert pending.cancel == self._cancel
            assert pending.pause == self._pause

    @rule(back=_LEASES, crash=_CRASH)
    def keep(self, back: int, crash: int | None) -> None:
        if (lease := self._lease(back)) is None:
            return
        with self._dying(crash):
            try:
                self._do(self._keep(lease))
            except LeaseLost:
                assert not self._holds(lease)
            else:
                assert self._holds(lease)
                self._entries += 1
                self._claims = 0

    async def _keep(self, lease: Lease[Run]) -> None:
        journal = StoredJournal(self._database, lease, asyncio.get_running_loop(), lambda: None)
        await journal.keep(self._done, f"rollout/train/{self._entries}", "{}")

    @rule(back=_LEASES, ahead=_AHEAD, again=st.booleans(), crash=_CRASH)
    def commit(self, back: int, ahead: int, again: bool, crash: int | None) -> None:
        """`again`: the reply was lost, and it is saved once more."""
        if (lease := self._lease(back)) is None or (iteration := self._done + ahead) < 0:
            return
        with self._dying(crash):
            try:
                self._do(self._save(lease, iteration))
            except LeaseLost:
                assert not self._holds(lease) or ahead > 0
            else:
                assert self._holds(lease)
                assert ahead <= 0
                if ahead == 0:
                    self._done += 1
                    self._claims = 0
                if again:
                    self._do(self._save(lease, iteration))

    async def _save(self, lease: Lease[Run], iteration: int) -> None:
        run = await self._store.get(self._id)
        policy = ScriptedPolicy(ModelSpec("p", self._id, "tiny"), "http://127.0.0.1:9")
        rows = iteration_rows(run, None, scripted_result(policy, iteration, iteration, _ITERATIONS, "so"), ())
        await save_iteration(self._database, lease, rows)

    @rule(back=_LEASES, crash=_CRASH)
    def release(self, back: int, crash: int | None) -> None:
        if (lease := self._lease(back)) is None:
            return
        holder = next(worker for worker in self._workers if worker.worker == lease.worker)
        with self._dying(crash):
            self._do(holder.release(lease))
            if self._holds(lease):
                self._move(Move.RELEASE)
                self._claims = max(self._claims - 1, 0)

    @rule(back=_LEASES, how=st.sampled_from(sorted(TERMINAL)), crash=_CRASH)
    def finish(self, back: int, how: RunStatus, crash: int | None) -> None:
        if (lease := self._lease(back)) is None:
            return
        error = "so" if how is RunStatus.FAILED else None
        with self._dying(crash):
            self._do(self._store.finish(lease, how, error=error))
            if self._holds(lease):
                self._move(_ENDINGS[how])

    @rule(back=_LEASES, crash=_CRASH)
    def stop_for_a_pause(self, back: int, crash: int | None) -> None:
        if (lease := self._lease(back)) is None:
            return
        with self._dying(crash):
            self._do(self._store.suspend(lease, "asked for"))
            if self._holds(lease):
                self._move(Move.SUSPEND)
                self._pause = False

    @rule(verb=st.sampled_from([Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY]))
    def ask(self, verb: Verb) -> None:
        request = getattr(self._store, str(verb))(self._id, "owner")
        try:
            status = self._do(request)
        except NotAllowed:
            assert verb not in allowed(self._status)
            return
        assert verb in allowed(self._status)
        if verb in (Verb.RESUME, Verb.RETRY):
            self._move(Move.RESUME if verb is Verb.RESUME else Move.RETRY)
            self._claims, self._cancel, self._pause = 0, False, False
        elif self._status is RunStatus.RUNNING:
            self._cancel |= verb is Verb.CANCEL
            self._pause |= verb is Verb.PAUSE
        elif self._status is not RunStatus.CANCELLED:
            self._move(Move.CANCEL if verb is Verb.CANCEL else Move.PAUSE)
        assert status is self._status

    @rule(crash=st.booleans())
    def deliver(self, crash: bool) -> None:
        """Deliver the oldest event that the receiver has not received. With `crash` it is sent but not recorded."""
        self._do(self._deliver(crash))

    async def _deliver(self, crash: bool) -> None:
        for claimed in await claim(self._database, 1, {}, visibility_timeout_s=0, last_attempt=1000):
            if not crash:
                await record_attempt(self._database, claimed, SendResult(0.0, 200, None), None)
                async with self._database() as tx:
                    delivered = select(WebhookDelivery.event_seq).where(WebhookDelivery.id == claimed.id)
                    self._delivered.append(await tx.scalar(delivered))

    @invariant()
    def rows_agree(self) -> None:
        if hasattr(self, "_id"):
            self._do(self._agree())

    async def _agree(self) -> None:
        async with self._database() as tx:
            run = await tx.get_one(Run, self._id)
            events = (await tx.execute(select(Event).order_by(Event.seq))).scalars().all()
            iterations = list(await tx.scalars(select(Iteration.iteration).order_by(Iteration.iteration)))
            delivered = list(await tx.scalars(select(WebhookDelivery.event_seq).order_by(WebhookDelivery.seq)))
        assert run.status == self._status
        assert run.epoch == len(self._given)
        assert run.claims == self._claims
        assert run.owner == (self._given[-1].worker if self._status is RunStatus.RUNNING else None) or (
            self._status not in (RunStatus.RUNNING, *TERMINAL) and run.owner is None
        )
        assert iterations == [*range(self._done)] == [*range(run.next_iteration)]
        assert [event.seq for event in events] == [*range(1, run.event_seq + 1)]
        assert delivered == [event.seq for event in events]
        assert self._delivered == delivered[: len(self._delivered)]
        assert (run.epoch, run.event_seq) >= self._seen
        self._seen = (run.epoch, run.event_seq)
        ends = sum(event.type in _ENDS for event in events)
        retried = sum(event.type == "run.retried" for event in events)
        assert ends == retried + (self._status in TERMINAL)


@pytest.mark.long
def test_whatever_the_order_one_worker_holds_a_run_and_its_log_is_whole(postgres: URL) -> None:
    name = f"t{ULID()}".lower()
    conninfo = f"host='{postgres.query['host']}' user=postgres dbname=postgres"
    with psycopg.connect(conninfo, autocommit=True) as admin, asyncio.Runner() as runner:
        admin.execute(f"CREATE DATABASE {name}".encode())
        engine = make_engine(postgres.set(database=name))
        try:
            runner.run(migrate(engine))
            database = make_database(engine)
            checks = settings(
                max_examples=_SEQUENCES,
                stateful_step_count=25,
                deadline=None,
                database=None,
                derandomize=True,
                phases=_PHASES,
                suppress_health_check=list(HealthCheck),
            )
            crashes = Crashes(engine)
            machine: Any = lambda: LeaseMachine(runner, database, crashes)  # noqa: E731 - hypothesis asks for a class
            run_state_machine_as_test(machine, settings=checks)
        finally:
            runner.run(engine.dispose())
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
