"""The quick way of a call does what the way step by step does, and leaves to it what is not usual."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import delete, select, text, update

from learnloop_service.app.agent_sessions.batched_calls import BatchedCalls, TakenCall
from learnloop_service.app.agent_sessions.calls import (
    SessionCaller,
    SessionCalls,
    SessionLimitReached,
    SessionOver,
    SessionRestarted,
)
from learnloop_service.app.agent_sessions.canonical import CanonicalRequest, canonical, seeds_of_call
from learnloop_service.app.agent_sessions.replay import Repetition
from learnloop_service.app.agent_sessions.store import AgentSessions
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, SessionCall, SessionUse
from learnloop_service.training.rollout.agents.sessions import SessionLimits, SessionOutcome
from tests import conditions
from tests.connections import end_connections
from tests.integration.app.agent_calls import GREETING, QUESTION, completion, spec

SEED = 7


@pytest.fixture
async def calls(database: Database) -> AsyncIterator[SessionCalls]:
    session_calls = SessionCalls(database)
    async with session_calls.working():
        yield session_calls


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sessions of calls that were taken the quick way."""
    session_ids, take = list[str](), BatchedCalls.take

    async def noted(self: BatchedCalls, call: Any) -> TakenCall | None:
        if (taken_call := await take(self, call)) is not None:
            session_ids.append(call.session_id)
        return taken_call

    monkeypatch.setattr(BatchedCalls, "take", noted)
    return session_ids


async def opened(database: Database, **more: Any) -> SessionCaller:
    session = await AgentSessions(database).open(spec(seed=SEED, **more))
    assert session.key is not None
    return SessionCaller(session.row.id, hash_of(session.key))


async def begun(
    calls: SessionCalls, asker: SessionCaller, request: CanonicalRequest = GREETING, **repetition: Any
) -> Any:
    return await calls.begin(asker, request, "chat", Repetition(**repetition), seeds_of_call(SEED, request, 0))


async def answered(calls: SessionCalls, asker: SessionCaller, request: CanonicalRequest = GREETING, *ids: int) -> Any:
    call = await begun(calls, asker, request)
    if call.recorded is None:
        await calls.answer(call, completion("hi", *(ids or (5, 6))))
    await calls.finish(call, delivered=True)
    return call


async def columns(database: Database, asker: SessionCaller) -> Any:
    """All that is kept of a session but ids, times and keys."""
    of_session = "uses, calls, opening_digest, prompt_tokens, completion_tokens, attempt"
    of_call = (
        "number, digest, occurrence, protocol, request, seed, answer, model, prompt_tokens, completion_tokens, holder"
    )
    of_use = "attempt, number, digest, occurrence, idempotency_key, delivered_at IS NOT NULL"
    tables = []
    async with database() as tx:
        for selected, of, id in (
            (of_session, "agent_session", "id"),
            (of_call, "session_call", "session_id"),
            (of_use, "session_use", "session_id"),
        ):
            rows = await tx.execute(
                text(f"SELECT {selected} FROM {of} WHERE {id} = :id ORDER BY 1"), {"id": asker.session_id}
            )
            tables.append([tuple(row) for row in rows])
    return tables


async def test_both_ways_leave_the_same(database: Database, taken: list[str]) -> None:
    quick, slow = await opened(database), await opened(database)
    for asker, is_quick in ((quick, True), (slow, False)):
        calls = SessionCalls(database)
        async with calls.working():
            for request, key in ((GREETING, None), (QUESTION, "a key"), (GREETING, "another")):
                seeds = seeds_of_call(SEED, request, 0) if is_quick else None
                call = await calls.begin(asker, request, "chat", Repetition(idempotency_key=key), seeds)
                await calls.answer(call, completion("hi", 5, 6))
                await calls.finish(call, delivered=True)
    assert taken == [quick.session_id] * 2  # a request that is made again goes step by step
    assert await columns(database, quick) == await columns(database, slow)


async def test_conversations_at_the_same_time_do_not_mix(
    calls: SessionCalls, database: Database, taken: list[str]
) -> None:
    askers = [await opened(database) for _ in range(12)]
    await asyncio.gather(*(answered(calls, asker, GREETING, number) for number, asker in enumerate(askers, 1)))
    assert sorted(taken) == sorted(asker.session_id for asker in askers)
    for number, asker in enumerate(askers, 1):
        [call] = await calls.listed(asker.session_id)
        assert call.completion == completion("hi", number)


async def test_the_same_request_twice_at_the_same_time_is_two_samples(calls: SessionCalls, database: Database) -> None:
    asker = await opened(database)
    begun_calls = await asyncio.gather(*(begun(calls, asker) for _ in range(3)), begun(calls, asker, QUESTION))
    assert sorted(call.occurrence for call in begun_calls) == [0, 0, 1, 2]
    assert len({call.key for call in begun_calls}) == 4
    assert [call.number for call in await calls.listed(asker.session_id)] == [1, 2, 3, 4]


async def test_what_is_refused_step_by_step_is_refused(calls: SessionCalls, database: Database) -> None:
    store = AgentSessions(database)
    limited = await opened(database, limits=SessionLimits(max_calls=1))
    await answered(calls, limited)
    with pytest.raises(SessionLimitReached, match="limit of calls is reached"):
        await begun(calls, limited, QUESTION)
    spent = await opened(database, limits=SessionLimits(max_tokens=4))
    await answered(calls, spent)
    with pytest.raises(SessionLimitReached, match="limit of tokens is reached"):
        await begun(calls, spent, QUESTION)
    restarted = await opened(database)
    await store.restart(LOCAL, restarted.session_id)
    with pytest.raises(SessionRestarted):
        await begun(calls, restarted)
    over, late = await opened(database), await opened(database)
    first, second = await begun(calls, over), await begun(calls, late)
    await store.end(LOCAL, over.session_id, SessionOutcome(reward=1.0))
    async with database.begin() as tx:
        await tx.execute(
            update(AgentSession).where(AgentSession.id == late.session_id).values(expires_at=AgentSession.opened_at)
        )
    for asker, call in ((over, first), (late, second)):
        with pytest.raises(SessionOver):
            await calls.answer(call, completion("too late", 1))
        with pytest.raises(SessionOver):
            await begun(calls, asker, QUESTION)


async def test_a_reply_delivered_again_while_it_is_noted_leaves_nothing_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, is_noting, may_note = BatchedCalls.delivered, asyncio.Event(), asyncio.Event()

    async def delayed(self: BatchedCalls, uses: Any) -> bool:
        is_noting.set()
        await may_note.wait()
        return await note(self, uses)

    monkeypatch.setattr(BatchedCalls, "delivered", delayed)
    asker, calls = await opened(database), SessionCalls(database)
    async with calls.working():
        call = await answered(calls, asker)
        await is_noting.wait()
        await calls.finish(call, delivered=True)
        may_note.set()
    async with database() as tx:
        of_session = select(SessionUse.delivered_at).where(SessionUse.session_id == asker.session_id)
        assert [at is not None for at in await tx.scalars(of_session)] == [True]


async def test_the_answer_of_another_process_counts(calls: SessionCalls, database: Database) -> None:
    asker, other = await opened(database), SessionCalls(database)
    call = await begun(calls, asker)
    assert await other.answer(call, completion("first", 1)) == completion("first", 1)
    assert await calls.answer(call, completion("second", 2)) == completion("first", 1)
    async with database() as tx:
        row = await tx.get_one(AgentSession, asker.session_id)
    assert (row.prompt_tokens, row.completion_tokens) == (2, 1)


async def test_a_session_that_somebody_else_has_locked_holds_up_no_other(
    calls: SessionCalls, database: Database, taken: list[str]
) -> None:
    locked, other = await opened(database), await opened(database)
    async with database.begin() as tx:
        await tx.execute(select(AgentSession).where(AgentSession.id == locked.session_id).with_for_update())
        waiting = asyncio.create_task(answered(calls, locked))
        await conditions.answered(partial(_waits_for_a_lock, database), bool)
        await answered(calls, other)
        assert taken == [other.session_id]
        assert not waiting.done()
    await waiting
    assert [call.completion is None for call in await calls.listed(locked.session_id)] == [False]


async def _waits_for_a_lock(database: Database) -> bool:
    query = text(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
    )
    async with database() as tx:
        return bool((await tx.execute(query)).scalar_one())


async def restarted(database: Database, id: str) -> None:
    await AgentSessions(database).restart(LOCAL, id)


async def ended(database: Database, id: str) -> None:
    await AgentSessions(database).end(LOCAL, id, SessionOutcome(reward=1.0))


HELD_UP = (
    "CREATE FUNCTION hold_up() RETURNS trigger AS "
    "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$ LANGUAGE plpgsql",
    "CREATE TRIGGER held_up BEFORE UPDATE ON agent_session FOR EACH STATEMENT "
    "WHEN (current_query() LIKE '%WITH asked AS%') EXECUTE FUNCTION hold_up()",
)
"""The statement that takes calls waits for a lock where it has seen the sessions and not locked one."""


@pytest.mark.parametrize(("change", "refusal"), [(restarted, SessionRestarted), (ended, SessionOver)])
async def test_a_session_that_changes_while_a_call_is_taken_is_looked_at_again(
    calls: SessionCalls,
    database: Database,
    change: Callable[[Database, str], Awaitable[None]],
    refusal: type[Exception],
) -> None:
    asker = await opened(database)
    async with database.begin() as tx:
        for statement in HELD_UP:
            await tx.execute(text(statement))
    async with database.begin() as holding:
        await holding.execute(text("SELECT pg_advisory_xact_lock(1)"))
        beginning = asyncio.create_task(begun(calls, asker))
        await conditions.answered(partial(_waits_for_a_lock, database), bool)
        await change(database, asker.session_id)
    with pytest.raises(refusal):
        await beginning
    assert await calls.listed(asker.session_id) == []


async def test_a_call_that_a_crashed_database_forgot_comes_back_with_its_answer(
    calls: SessionCalls, database: Database
) -> None:
    asker, undisturbed = await opened(database), await opened(database)
    for caller in (asker, undisturbed):
        await answered(calls, caller)
        call = await begun(calls, caller, QUESTION)
        if caller is asker:
            await _forget(database, call)
        await calls.answer(call, completion("because", 8))
        await calls.finish(call, delivered=True)
    assert (await columns(database, asker))[:2] == (await columns(database, undisturbed))[:2]
    assert len(await calls.of_last_attempt(asker.session_id)) == 2


async def _forget(database: Database, call: Any) -> None:
    """Deletes the call, as if what began it had not reached the disk."""
    async with database.begin() as tx:
        for table in (SessionCall, SessionUse):
            of_call = (table.session_id == call.session_id, table.digest == call.digest)
            await tx.execute(delete(table).where(*of_call))
        counted = {"uses": AgentSession.uses - 1, "calls": AgentSession.calls - 1}
        await tx.execute(update(AgentSession).where(AgentSession.id == call.session_id).values(counted))


async def test_a_broken_connection_costs_no_call(
    calls: SessionCalls, database: Database, taken: list[str], database_url: str
) -> None:
    asker = await opened(database)
    await answered(calls, asker)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as admin:
        assert len(await end_connections(admin, admin.info.dbname)) >= 2
    requests = [canonical({"messages": [{"role": "user", "content": f"{number}"}]}, None) for number in range(3)]
    for request in requests:
        await answered(calls, asker, request)
    assert len(await calls.listed(asker.session_id)) == 4

    async def is_quick() -> bool:
        number = len(taken)
        await answered(calls, await opened(database))
        return len(taken) > number

    await conditions.answered(is_quick, bool)


async def test_an_agent_that_leaves_while_its_call_is_taken_leaves_it_free(
    calls: SessionCalls, database: Database
) -> None:
    asker = await opened(database)
    await answered(calls, asker)
    leaving = asyncio.create_task(begun(calls, asker, QUESTION))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    call = await begun(calls, asker, QUESTION)
    assert (call.occurrence, call.recorded) == (0, None)
    await calls.finish(call, delivered=False)
    assert not calls._replying
    assert not calls._sampling
    assert not calls._claiming
