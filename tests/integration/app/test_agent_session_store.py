"""Sessions and their calls in a real database: who may begin a call, what is answered again, what is trained."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select, update

from learnloop_service.app.agent_sessions.calls import (
    SessionCaller,
    SessionCalls,
    SessionLimitReached,
    SessionOver,
    SessionRestarted,
)
from learnloop_service.app.agent_sessions.canonical import CallSeeds, CanonicalRequest, canonical, seeds_of_call
from learnloop_service.app.agent_sessions.replay import Repetition
from learnloop_service.app.agent_sessions.store import (
    AgentSessions,
    OutcomeKnown,
    SessionIsOver,
)
from learnloop_service.app.auth.caller import LOCAL, Caller
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Run, SessionCall
from learnloop_service.app.errors import NotFound, TooManyRequests
from learnloop_service.app.worker.rollout_sessions import LeasedSessions
from learnloop_service.training.rollout.agents.sessions import SessionEnd, SessionLimits, SessionOutcome
from learnloop_service.training.rollout.agents.sessions import SessionHasEnded as RolloutSessionOver
from learnloop_service.training.rollout.model_calls import Sampling
from tests.integration.app.agent_calls import GREETING, QUESTION, answered, begun, completion, spec
from tests.integration.app.leased_work import claimed, queued, worker


async def test_an_agent_that_is_started_again_gets_its_answers(database: Database) -> None:
    store, calls = AgentSessions(database), SessionCalls(database)
    opened = await store.open(spec(explicit_restart=True))
    first = SessionCaller(opened.row.id, hash_of(opened.key or ""))
    await answered(calls, first, "hi")
    await answered(calls, first, "hi again")
    await answered(calls, first, "because", QUESTION)
    again = await store.restart(LOCAL, opened.row.id)
    asker = SessionCaller(again.row.id, hash_of(again.key or ""))
    for reply in ("hi", "hi again"):
        replayed = await begun(calls, asker)
        assert replayed.recorded == completion(reply, 5, 6)
        await calls.finish(replayed, delivered=True)
    with pytest.raises(SessionRestarted):
        await begun(calls, first)
    # It goes another way now: what only the first start asked is not trained.
    trained = await calls.of_last_attempt(opened.row.id)
    assert [call.completion.choices[0].message.content for call in trained] == ["hi", "hi again"]
    assert trained[0].completion.model_extra == {"prompt_token_ids": [7, 8]}
    assert trained[0].used.completion_tokens == 2
    assert [call.used for call in await calls.listed(opened.row.id)] == [True, True, False]


async def test_a_call_that_is_sampled_again_has_the_same_seed(database: Database) -> None:
    calls = SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    first = await begun(calls, asker)
    await calls.finish(first, delivered=False)
    assert await begun(calls, asker) == first
    assert (await begun(calls, asker)).seed != first.seed  # another sample of the same


async def test_a_dead_process_is_found_out_and_its_call_sampled_again(database: Database) -> None:
    dead, alive = SessionCalls(database), SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    first = await begun(dead, asker)
    waiting = asyncio.create_task(begun(alive, asker))
    await asyncio.sleep(0)
    async with database.begin() as tx:  # the time that it takes passes
        await tx.execute(update(SessionCall).values(held_until=func.clock_timestamp()))
    taken_over = await waiting
    assert (taken_over.key, taken_over.seed) == (first.key, first.seed)
    assert await alive.answer(taken_over, completion("mine", 5)) == completion("mine", 5)
    # The first one was only slow: what it sampled is not stored beside it, and its client gets what is.
    assert await dead.answer(first, completion("mine, too", 6)) == completion("mine", 5)
    assert len(await alive.listed(asker.session_id)) == 1


async def test_a_reply_that_was_lost_with_its_process_is_given_again(database: Database) -> None:
    dead, alive = SessionCalls(database), SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    await dead.answer(await begun(dead, asker), completion("hi", 5))
    replayed = await begun(alive, asker)
    assert replayed.recorded == completion("hi", 5)
    async with alive.working():
        await alive.finish(replayed, delivered=True)
    assert (await begun(SessionCalls(database), asker)).attempt == 2  # it arrived, so the agent was started again


async def test_a_reply_arrived_if_the_agent_asked_for_more(database: Database) -> None:
    dead, alive = SessionCalls(database), SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec(explicit_restart=True))).row.id)
    await dead.answer(await begun(dead, asker), completion("hi", 5))
    await begun(alive, asker, QUESTION)
    assert (await begun(alive, asker)).occurrence == 1


async def test_what_a_process_works_on_is_left_to_it(database: Database) -> None:
    alive = SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    await begun(alive, asker)
    before = await _held_until(database)
    await alive.renew()
    assert await _held_until(database) > before


async def test_calls_are_renewed_while_an_answer_is_recorded(database: Database) -> None:
    store, alive = AgentSessions(database), SessionCalls(database)
    for _ in range(2):
        await begun(alive, SessionCaller((await store.open(spec())).row.id))
    at = select(SessionCall.session_id, SessionCall.held_until).order_by(SessionCall.session_id)
    async with database.begin() as answering:
        before = (await answering.execute(at)).all()
        await answering.execute(
            update(SessionCall).where(SessionCall.session_id == before[0].session_id).values(model="of the answer")
        )
        async with asyncio.timeout(30):  # by far longer than it takes
            await alive.renew()
    async with database() as tx:
        after = (await tx.execute(at)).all()
    assert after[0] == before[0]
    assert after[1].held_until > before[1].held_until


async def _held_until(database: Database) -> Any:
    async with database() as tx:
        return (await tx.execute(select(SessionCall.held_until))).scalar_one()


async def test_the_very_first_request_restarts_a_session_opened_by_hand(database: Database) -> None:
    calls = SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    await answered(calls, asker, "hi")
    await answered(calls, asker, "because", QUESTION)
    for request, reply in ((GREETING, "hi"), (QUESTION, "because")):
        replayed = await begun(calls, asker, request)
        assert replayed.recorded == completion(reply, 5, 6)
        await calls.finish(replayed, delivered=True)
    assert (await begun(calls, asker, QUESTION)).recorded is None  # not the first one: another sample


async def test_a_session_that_is_over_answers_nothing_and_keeps_its_outcome(database: Database) -> None:
    store, calls = AgentSessions(database), SessionCalls(database)
    id = (await store.open(spec())).row.id
    running = await begun(calls, SessionCaller(id))
    outcome = SessionOutcome(reward=0.1, parts={"cost": -1.0})
    assert (await store.end(LOCAL, id, outcome)).state == "ended"
    assert (await store.end(LOCAL, id, outcome)).state == "ended"
    with pytest.raises(OutcomeKnown):
        await store.end(LOCAL, id, SessionOutcome(reward=0.2))
    with pytest.raises(SessionOver):
        await calls.answer(running, completion("too late", 5))
    with pytest.raises(SessionOver):
        await begun(calls, SessionCaller(id))
    with pytest.raises(SessionIsOver):
        await store.restart(LOCAL, id)
    assert await calls.of_last_attempt(id) == []


async def test_sessions_that_nobody_ends_expire(database: Database) -> None:
    store = AgentSessions(database)
    late, open_one = (await store.open(spec(ttl=timedelta(0)))).row.id, (await store.open(spec())).row.id
    with pytest.raises(SessionOver):
        await begun(SessionCalls(database), SessionCaller(late))
    await store.expire()
    assert (await store.get(LOCAL, late)).state == "expired"
    assert await store.over([late, open_one, "gone"]) == {late: None, "gone": None}
    with pytest.raises(SessionIsOver):
        await store.end(LOCAL, late, SessionOutcome(reward=1.0))


async def test_limits(database: Database) -> None:
    store, calls = AgentSessions(database), SessionCalls(database)
    asker = SessionCaller((await store.open(spec(limits=SessionLimits(max_calls=2, max_tokens=3)))).row.id)
    await answered(calls, asker, "hi")
    with pytest.raises(SessionLimitReached, match="limit of tokens is reached"):
        await begun(calls, asker, QUESTION)
    assert (await begun(calls, asker, is_retry=True)).recorded is not None  # costs nothing
    with pytest.raises(TooManyRequests):
        await store.open(spec(), most_open=1)


async def test_tokens_under_way_count_toward_the_limit(database: Database) -> None:
    store, calls = AgentSessions(database), SessionCalls(database)
    asker = SessionCaller((await store.open(spec(limits=SessionLimits(max_tokens=1_000)))).row.id)
    first = await begun(calls, asker)
    with pytest.raises(TimeoutError):  # the first one is expected to use up the limit
        async with asyncio.timeout(1):
            await begun(calls, asker, QUESTION)
    await calls.answer(first, completion("hi", 5, 6))
    await calls.finish(first, delivered=True)
    small = [canonical({"messages": [{"role": "user", "content": f"{n}?"}], "max_tokens": 400}, None) for n in range(3)]
    second, third = [await begun(calls, asker, small_request) for small_request in small[:2]]
    last = asyncio.create_task(begun(calls, asker, small[2]))
    await calls.answer(third, completion("long", *range(1_000)))
    with pytest.raises(SessionLimitReached, match="limit of tokens is reached"):
        await last
    await calls.answer(second, completion("what was begun is answered", 5))


async def test_other_projects_see_nothing(database: Database) -> None:
    store, stranger = AgentSessions(database), Caller("key:x", "other", frozenset())
    id = (await store.open(spec())).row.id
    for act in (
        store.get(stranger, id),
        store.restart(stranger, id),
        store.end(stranger, id, SessionOutcome(reward=1.0)),
    ):
        with pytest.raises(NotFound):
            await act
    assert await store.listed(stranger, state=None, before=None, limit=9) == []
    assert [row.id for row in await store.listed(LOCAL, state=None, before=None, limit=9)] == [id]


def of_run(database: Database, lease: Lease[Run]) -> LeasedSessions:
    return LeasedSessions(database, lease, asyncio.get_running_loop(), project="p", backend="embedded")


async def opened_rollout(sessions: LeasedSessions) -> Any:
    return await sessions.open(
        1,
        "rollout/train/0",
        model="p/x@0",
        step=0,
        seed=7,
        sampling=Sampling(0.7, 64),
        limits=SessionLimits(),
        ttl_s=60,
    )


async def test_who_takes_a_run_over_finds_its_sessions(database: Database) -> None:
    await queued(database)
    lease = await claimed(worker(database, "a"))
    first = await opened_rollout(of_run(database, lease))
    async with database.begin() as tx:
        await tx.execute(update(AgentSession).values(expires_at=func.now() + timedelta(seconds=1)))
    sessions = of_run(database, lease)
    resumed = await opened_rollout(sessions)
    assert (resumed.id, resumed.path, resumed.attempt, resumed.api_key) == (first.id, first.path, 1, None)
    restarted = await sessions.restart(first.id)
    assert (restarted.id, restarted.attempt) == (first.id, 2)
    assert restarted.api_key is not None
    waiting = asyncio.create_task(sessions.ended(first.id))
    await AgentSessions(database).end(LOCAL, first.id, SessionOutcome(output="done"), attempt=2)
    assert await asyncio.wait_for(waiting, 60) == SessionEnd(SessionOutcome(output="done"))
    assert await sessions.end(first.id, 2, SessionOutcome(reason="too late")) == SessionEnd(
        SessionOutcome(output="done")
    )
    assert await sessions.calls(first.id) == []
    with pytest.raises(RolloutSessionOver):
        await sessions.restart(first.id)


async def test_a_worker_that_lost_the_run_opens_nothing(database: Database) -> None:
    await queued(database)
    lease = await claimed(worker(database, "a"))
    old = Lease(Run, lease.id, lease.epoch - 1, lease.worker)
    with pytest.raises(LeaseLost):
        await opened_rollout(of_run(database, old))


def conversation(replies: int) -> CanonicalRequest:
    """The request of an agent that was answered so often."""
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    for number in range(replies):
        messages += [{"role": "assistant", "content": f"reply {number}"}, {"role": "user", "content": "and?"}]
    return canonical({"messages": messages}, None)


@pytest.mark.parametrize("quick", [True, False], ids=["one statement", "step by step"])
async def test_one_conversation_has_the_seeds_of_the_built_in_loop(database: Database, quick: bool) -> None:
    calls, seeds = SessionCalls(database), list[int]()
    asker = SessionCaller((await AgentSessions(database).open(spec(seed=7))).row.id)

    def seeds_of(request: CanonicalRequest) -> CallSeeds | None:
        return seeds_of_call(7, request, 0) if quick else None

    async with calls.working() if quick else nullcontext():
        for request in map(conversation, range(3)):
            call = await calls.begin(asker, request, "chat", Repetition(), seeds_of(request))
            await calls.answer(call, completion("hm", 5))
            await calls.finish(call, delivered=True)
            seeds.append(call.seed)
        aside = await calls.begin(asker, QUESTION, "chat", Repetition(), seeds_of(QUESTION))
    drawn = Random(7)
    assert seeds == [drawn.getrandbits(53) for _ in range(3)]
    assert [call.seed for call in await calls.listed(asker.session_id)] == [*seeds, aside.seed]
    assert aside.seed not in (*seeds, drawn.getrandbits(53))


async def test_seeds_of_calls_beside_the_conversation_depend_on_no_order(database: Database) -> None:
    seeds = list[dict[str, int]]()
    other = canonical({"messages": [{"role": "user", "content": "how?"}]}, None)
    for requests in ((QUESTION, other), (other, QUESTION)):
        calls = SessionCalls(database)
        asker = SessionCaller((await AgentSessions(database).open(spec(seed=7))).row.id)
        await begun(calls, asker)
        seeds.append({request.digest: (await begun(calls, asker, request)).seed for request in requests})
    assert seeds[0] == seeds[1]


async def test_a_call_that_is_sampled_again_keeps_the_seed_that_is_recorded(database: Database) -> None:
    """Whatever seeds another version of the service would give it."""
    calls = SessionCalls(database)
    asker = SessionCaller((await AgentSessions(database).open(spec())).row.id)
    await calls.finish(await begun(calls, asker), delivered=False)
    async with database.begin() as tx:
        await tx.execute(update(SessionCall).values(seed=11))
    assert (await begun(calls, asker)).seed == 11
