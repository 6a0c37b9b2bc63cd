"""Tasks for agents that fetch their work, in a real database: who is given one, who loses it, and what then becomes of
the session."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from learnloop_service.app.agent_sessions.store import (
    AgentSessions,
    AttemptMissing,
    ClaimLost,
    PinnedModel,
    SessionSpec,
)
from learnloop_service.app.agent_sessions.tasks import AgentTasks, ClaimedTask
from learnloop_service.app.auth.caller import LOCAL, Caller, SessionKey
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, AgentSessionKey, OpenAgentTask, SessionCall
from learnloop_service.app.errors import NotFound
from learnloop_service.training.rollout.agents.sessions import SessionOutcome

LEASE_S = 30.0
TASK = {"task": {"question": "why?"}}
MAIL = Caller("key", "mail", frozenset())
SALES = Caller("key", "sales", frozenset())


async def offered(database: Database, run_id: str | None = None) -> str:
    """A task of the project `mail`; its session."""
    model = PinnedModel("agent", "mail/agent@3", 3, "embedded", None)
    opened = await AgentSessions(database).open(SessionSpec("mail", model, timedelta(days=1), explicit_restart=True))
    await AgentTasks(database).offer(opened.row.id, "mail", run_id, TASK, 300.0)
    return opened.row.id


async def claim(database: Database, of: Caller = MAIL, run_id: str | None = None, worker: str = "a") -> Any:
    return await AgentTasks(database).claim(of, run_id, worker, LEASE_S)


async def lapse(database: Database) -> None:
    """Whoever has claimed a task has been silent for too long."""
    async with database.begin() as tx:
        past = func.clock_timestamp() - timedelta(seconds=1)
        await tx.execute(update(OpenAgentTask).where(OpenAgentTask.lease_until.is_not(None)).values(lease_until=past))


async def row(database: Database, id: str) -> AgentSession:
    async with database() as tx:
        return await tx.get_one(AgentSession, id)


async def test_each_task_is_given_once_and_to_its_own_project_only(database: Database) -> None:
    ids = [await offered(database) for _ in range(3)]
    assert await claim(database, SALES) is None
    claimed_tasks: list[ClaimedTask] = await asyncio.gather(*(claim(database) for _ in range(5)))
    assert sorted(claimed_task.session_id for claimed_task in claimed_tasks if claimed_task) == sorted(ids)
    assert len({claimed_task.api_key for claimed_task in claimed_tasks if claimed_task}) == 3
    one = next(claimed_task for claimed_task in claimed_tasks if claimed_task)
    assert (one.task, one.model, one.attempt) == (TASK, "mail/agent@3", 1)
    assert (await row(database, one.session_id)).expires_at == one.deadline
    with pytest.raises(NotFound):
        await AgentTasks(database).heartbeat(SALES, one.session_id, 1, LEASE_S)
    assert await AgentTasks(database).heartbeat(MAIL, one.session_id, 1, LEASE_S) > one.lease_until


async def test_only_tasks_of_the_run_that_is_asked_for(database: Database) -> None:
    await offered(database, "one")
    assert await claim(database, run_id="two") is None
    assert (await claim(database, LOCAL, run_id="one")).run_id == "one"


async def test_who_is_silent_loses_the_task_and_its_key_to_the_next(database: Database) -> None:
    id = await offered(database)
    first = await claim(database, worker="a")
    assert await claim(database, worker="b") is None
    await lapse(database)
    second = await claim(database, worker="b")
    assert (second.session_id, second.attempt) == (id, 2)
    assert second.api_key != first.api_key
    async with database() as tx:
        valid = select(func.count()).select_from(AgentSessionKey).where(AgentSessionKey.replaced_at.is_(None))
        assert (await tx.execute(valid)).scalar_one() == 1
    for lost in (AgentTasks(database).heartbeat(MAIL, id, 1, LEASE_S), AgentTasks(database).release(MAIL, id, 1, None)):
        with pytest.raises(ClaimLost):
            await lost
    await AgentTasks(database).heartbeat(MAIL, id, 2, LEASE_S)


async def test_the_outcome_of_an_attempt_that_lost_its_claim_does_not_end_the_next(database: Database) -> None:
    id, store = await offered(database), AgentSessions(database)
    first = await claim(database, worker="a")
    await lapse(database)
    second = await claim(database, worker="b")
    stale = SessionOutcome(reason="the model refused the key")
    with pytest.raises(ClaimLost, match="replaced by attempt 2"):
        await store.end(MAIL, id, stale, first.attempt)
    with pytest.raises(ClaimLost, match="earlier attempt"):
        await store.end(agent(id, first.api_key), id, stale)
    with pytest.raises(AttemptMissing, match="say which attempt"):
        await store.end(MAIL, id, stale)
    ended = await store.end(MAIL, id, SessionOutcome(reward=1.0), second.attempt)
    assert (ended.state, ended.outcome) == ("ended", {"reward": 1.0})
    with pytest.raises(ClaimLost):  # also once the session is over
        await store.end(agent(id, first.api_key), id, SessionOutcome(reward=1.0))
    await store.end(agent(id, second.api_key), id, SessionOutcome(reward=1.0))  # a repetition


async def test_an_outcome_needs_no_attempt_while_there_was_only_one(database: Database) -> None:
    id = await offered(database)
    assert (await claim(database)).attempt == (await row(database, id)).attempt == 1
    assert (await AgentSessions(database).end(MAIL, id, SessionOutcome(reward=1.0))).state == "ended"


def agent(session_id: str, key: str) -> Caller:
    """The agent that uses the session's key."""
    return Caller("session", "mail", frozenset(), SessionKey(session_id, hash_of(key)))


async def test_who_was_silent_keeps_what_nobody_else_has_claimed(database: Database) -> None:
    id = await offered(database)
    await claim(database)
    await lapse(database)
    await AgentTasks(database).heartbeat(MAIL, id, 1, LEASE_S)
    assert await claim(database, worker="b") is None


async def test_a_task_that_is_given_back_is_claimed_at_once_and_that_costs_it_nothing(database: Database) -> None:
    id = await offered(database)
    for attempt in range(1, 6):
        assert (await claim(database)).attempt == attempt
        await AgentTasks(database).release(MAIL, id, attempt, None)
    assert (await row(database, id)).outcome is None


@pytest.mark.parametrize("silent", [True, False])
async def test_a_task_that_is_lost_again_and_again_has_no_outcome(database: Database, silent: bool) -> None:
    id = await offered(database)
    for attempt in (1, 2, 3):
        assert (await claim(database)).attempt == attempt
        if silent:
            await lapse(database)
        else:
            await AgentTasks(database).release(MAIL, id, attempt, "no disk")
    assert await claim(database) is None
    ended = await row(database, id)
    assert ended.outcome is not None
    assert ("lost 3 times" in ended.outcome["reason"], "no disk" in ended.outcome["reason"]) == (True, not silent)
    assert ended.outcome["lost"] is True


async def test_an_agent_that_gets_on_may_be_lost_any_number_of_times(database: Database) -> None:
    id = await offered(database)
    for attempt in range(1, 7):
        assert (await claim(database)).attempt == attempt
        await answered(database, id, attempt)
        await lapse(database) if attempt % 2 else await AgentTasks(database).release(MAIL, id, attempt, "no network")
    for attempt in (7, 8):
        assert (await claim(database)).attempt == attempt
        await lapse(database)
    assert await claim(database) is None
    assert (await row(database, id)).outcome is not None


async def answered(database: Database, id: str, number: int) -> None:
    """Another call of the session's model has its answer."""
    call = SessionCall(session_id=id, number=number, digest=str(number), occurrence=0, protocol="chat", seed=1)
    call.request, call.answered_at = b"", func.clock_timestamp()
    async with database.begin() as tx:
        tx.add(call)


async def test_what_is_over_is_neither_given_nor_kept(database: Database) -> None:
    id = await offered(database)
    await claim(database)
    await AgentSessions(database).end(MAIL, id, SessionOutcome(reward=1.0))
    with pytest.raises(ClaimLost, match="is over"):
        await AgentTasks(database).heartbeat(MAIL, id, 1, LEASE_S)
    await lapse(database)
    assert await claim(database) is None


async def test_a_worker_that_takes_over_leaves_who_works_on_a_task_its_deadline(database: Database) -> None:
    id = await offered(database)
    claimed = await claim(database)
    async with database.begin() as tx:  # as the next worker finds the session
        later = func.clock_timestamp() + timedelta(days=1)
        await tx.execute(update(AgentSession).values(expires_at=later))
    await AgentTasks(database).offer(id, "mail", None, TASK, 300.0)
    assert (await row(database, id)).expires_at == claimed.deadline
    assert await claim(database, worker="b") is None
