"""Leases, commits and verbs in any order: the real store on a real Postgres against a model of a dozen lines."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import URL, delete, func, select, text, update
from ulid import ULID

from app.db import Sessions, make_engine, make_sessions, migrate
from app.errors import NotAllowed
from app.models import Event, Iteration, Run
from app.runs.journal_store import StoredJournal
from app.runs.leases import MAX_ATTEMPTS, Lease, LeaseLost, Leases, Limits
from app.runs.record import iteration_rows, save_iteration
from app.runs.state import TERMINAL, RunStatus, Verb, allowed, moves
from app.runs.store import RunStore
from tests.fakes.scripted_learning import ScriptedPolicy, scripted_result
from training.backends.base import ModelSpec

Result = TypeVar("Result")
_ITERATIONS = 50
_ENDS = {f"run.{status}" for status in TERMINAL}
_LEASES = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
"""Of the leases that were ever given, how many came after it: mostly the newest, else hardly anything is committed."""


class LeaseMachine(RuleBasedStateMachine):
    """One run, two workers, an impatient owner. What is expected is said in the rules; the rest in the invariants."""

    def __init__(self, runner: asyncio.Runner, sessions: Sessions) -> None:
        super().__init__()
        self._runner = runner
        self._sessions = sessions
        self._store = RunStore(sessions)
        self._workers = [
            Leases(sessions, name, ttl_s=60, limits=Limits(), backends=["embedded"], engine="here") for name in "ab"
        ]
        self._given: list[Lease] = []
        self._status = RunStatus.QUEUED
        self._lapsed = False
        self._attempts = 0
        self._done = 0
        self._entries = 0
        self._cancel = self._pause = False
        self._seen: tuple[int, int] = (0, 0)

    def _do(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(act)

    @initialize()
    def accept(self) -> None:
        self._id = str(ULID())
        run = Run(
            id=self._id,
            request={},
            environment="email_search",
            judge="reference",
            backend="embedded",
            model_project="p",
            model_name=self._id,
            base_model="tiny",
            iterations_total=_ITERATIONS,
        )
        self._do(self._store.create(run))

    def teardown(self) -> None:
        self._do(self._forget())

    async def _forget(self) -> None:
        async with self._sessions.begin() as session:
            await session.execute(delete(Run))

    def _lease(self, back: int) -> Lease | None:
        return self._given[-1 - back] if back < len(self._given) else None

    def _holds(self, lease: Lease) -> bool:
        return self._status is RunStatus.RUNNING and lease == self._given[-1]

    def _move(self, status: RunStatus) -> None:
        assert status in moves(self._status)
        self._status = status
        if status is not RunStatus.RUNNING:
            self._lapsed = False

    @rule(worker=st.integers(0, 1))
    def claim(self, worker: int) -> None:
        free = self._status is RunStatus.QUEUED or (self._status is RunStatus.RUNNING and self._lapsed)
        claimed = self._do(self._workers[worker].claim())
        assert (claimed is not None) == (free and self._attempts < MAX_ATTEMPTS)
        if claimed is not None:
            assert claimed[1].epoch == len(self._given) + 1
            self._given.append(claimed[1])
            self._attempts += 1
            self._status, self._lapsed = RunStatus.RUNNING, False
        elif free:
            self._move(RunStatus.FAILED)

    @rule()
    def time_passes(self) -> None:
        if self._status is RunStatus.RUNNING:
            self._do(self._lapse())
            self._lapsed = True

    async def _lapse(self) -> None:
        past = func.clock_timestamp() - text("interval '1 second'")
        async with self._sessions.begin() as session:
            await session.execute(update(Run).where(Run.id == self._id).values(lease_until=past))

    @rule(back=_LEASES)
    def beat(self, back: int) -> None:
        if (lease := self._lease(back)) is None:
            return
        try:
            wishes = self._do(self._store.beat(lease, None))
        except LeaseLost:
            assert not self._holds(lease)
        else:
            assert self._holds(lease)
            assert (wishes.cancel, wishes.pause) == (self._cancel, self._pause)

    @rule(back=_LEASES)
    def keep(self, back: int) -> None:
        if (lease := self._lease(back)) is None:
            return
        try:
            self._do(self._keep(lease))
        except LeaseLost:
            assert not self._holds(lease)
        else:
            assert self._holds(lease)
            self._entries += 1
            self._attempts = 0

    async def _keep(self, lease: Lease) -> None:
        journal = StoredJournal(self._sessions, lease, asyncio.get_running_loop(), lambda: None)
        await journal.keep(self._done, f"rollout/train/{self._entries}", "{}")

    @rule(back=_LEASES, again=st.booleans())
    def commit(self, back: int, again: bool) -> None:
        """`again`: the reply was lost, and it is saved once more."""
        if (lease := self._lease(back)) is None:
            return
        try:
            for _ in range(1 + again):
                self._do(self._save(lease, self._done))
        except LeaseLost:
            assert not self._holds(lease)
        else:
            assert self._holds(lease)
            self._done += 1
            self._attempts = 0

    async def _save(self, lease: Lease, iteration: int) -> None:
        run = await self._store.get(self._id)
        policy = ScriptedPolicy(ModelSpec("p", self._id, "tiny"), "http://127.0.0.1:9")
        rows = iteration_rows(run, scripted_result(policy, iteration, iteration, _ITERATIONS, "so"), ())
        await save_iteration(self._sessions, lease, rows)

    @rule(back=_LEASES)
    def release(self, back: int) -> None:
        if (lease := self._lease(back)) is None:
            return
        self._do(next(w for w in self._workers if w.worker == lease.worker).release(lease))
        if self._holds(lease):
            self._move(RunStatus.QUEUED)
            self._attempts = max(self._attempts - 1, 0)

    @rule(back=_LEASES, how=st.sampled_from(sorted(TERMINAL)))
    def finish(self, back: int, how: RunStatus) -> None:
        if (lease := self._lease(back)) is None:
            return
        self._do(self._store.finish(lease, how, error="so" if how is RunStatus.FAILED else None))
        if self._holds(lease):
            self._move(how)

    @rule(back=_LEASES)
    def stop_for_a_pause(self, back: int) -> None:
        if (lease := self._lease(back)) is None:
            return
        self._do(self._store.paused(lease, "asked for"))
        if self._holds(lease):
            self._move(RunStatus.PAUSED)
            self._pause = False

    @rule(verb=st.sampled_from([Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY]))
    def ask(self, verb: Verb) -> None:
        asked = getattr(self._store, str(verb))(self._id, "owner")
        try:
            status = self._do(asked)
        except NotAllowed:
            assert verb not in allowed(self._status)
            return
        assert verb in allowed(self._status)
        if verb in (Verb.RESUME, Verb.RETRY):
            self._move(RunStatus.QUEUED)
            self._attempts, self._cancel, self._pause = 0, False, False
        elif self._status is RunStatus.RUNNING:
            self._cancel |= verb is Verb.CANCEL
            self._pause |= verb is Verb.PAUSE
        elif self._status is not RunStatus.CANCELLED:
            self._move(RunStatus.CANCELLED if verb is Verb.CANCEL else RunStatus.PAUSED)
        assert status is self._status

    @invariant()
    def rows_agree(self) -> None:
        if hasattr(self, "_id"):
            self._do(self._agree())

    async def _agree(self) -> None:
        async with self._sessions() as session:
            run = await session.get_one(Run, self._id)
            events = (await session.execute(select(Event).order_by(Event.seq))).scalars().all()
            iterations = list(await session.scalars(select(Iteration.iteration).order_by(Iteration.iteration)))
        assert (run.status, run.epoch, run.attempts) == (self._status, len(self._given), self._attempts)
        assert run.owner == (self._given[-1].worker if self._status is RunStatus.RUNNING else None) or (
            self._status not in (RunStatus.RUNNING, *TERMINAL) and run.owner is None
        )
        assert iterations == [*range(self._done)] == [*range(run.next_iteration)]
        assert [event.seq for event in events] == [*range(1, run.event_seq + 1)]
        assert (run.epoch, run.event_seq) >= self._seen
        self._seen = (run.epoch, run.event_seq)
        ends = sum(event.type in _ENDS for event in events)
        retried = sum(event.type == "run.retried" for event in events)
        assert ends == retried + (self._status in TERMINAL)


def test_whatever_the_order_one_worker_holds_a_run_and_its_log_is_whole(postgres: URL) -> None:
    name = f"t{ULID()}".lower()
    conninfo = f"host='{postgres.query['host']}' user=postgres dbname=postgres"
    with psycopg.connect(conninfo, autocommit=True) as admin, asyncio.Runner() as runner:
        admin.execute(f"CREATE DATABASE {name}".encode())
        engine = make_engine(postgres.set(database=name))
        try:
            runner.run(migrate(engine))
            sessions = make_sessions(engine)
            checks = settings(
                max_examples=40,
                stateful_step_count=20,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            machine: Any = lambda: LeaseMachine(runner, sessions)  # noqa: E731 - hypothesis asks for a class
            run_state_machine_as_test(machine, settings=checks)
        finally:
            runner.run(engine.dispose())
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
