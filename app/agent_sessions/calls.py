"""The calls of agent sessions: all SQL about beginning, answering and reading them.

A request takes two transactions. The first one, under a lock of the session's row, decides which call it is (see
`replay`) and takes it for this process; the second one records the answer, before any of its last part leaves. A
process says every two seconds which calls it works on; after six seconds of silence another one samples them again, as
the same call with the same seed.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent_sessions.canonical import CanonicalRequest, seed_of_call
from app.agent_sessions.records import (
    KeptCall,
    KeptRequest,
    answered_call,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
    usage_of,
)
from app.agent_sessions.replay import Answered, Begun, Holder, RecordedCall, Repetition, Wait, decide, restarts
from app.aio.event_loops import shielded
from app.aio.periodic import every
from app.aio.retry import retry_while_database_is_down
from app.db.session import Sessions
from app.db.tables import AgentSession, SessionCall, SessionUse
from app.domain.agent_session_state import AgentSessionState
from app.errors import DATABASE_DOWN, Forbidden, InvalidRequest
from training.model_calls import AnsweredCall

Json = Any
_HELD = timedelta(seconds=6)
_RENEW_EVERY_S = 2.0
_LOOK_AGAIN_S = 0.1
_KEEP_TRYING_S = 60.0
"""To record an answer while the database is away."""

log = structlog.get_logger(__name__)

_LOCKED = text(
    "SELECT state, attempt, uses, calls, opening_digest, explicit_restart, seed, max_calls, max_tokens, "
    "prompt_tokens + completion_tokens AS tokens, expires_at <= clock_timestamp() AS lapsed, EXISTS (SELECT 1 FROM "
    "agent_session_key WHERE sha256 = :key AND session_id = :id AND replaced_at IS NOT NULL) AS replaced "
    "FROM agent_session WHERE id = :id FOR UPDATE"
)
_SAME = text(
    "SELECT call.number, call.occurrence, call.answered_at IS NOT NULL AS answered, call.holder, "
    "coalesce(call.held_until > clock_timestamp(), false) AS held, use.number IS NOT NULL AS used, use.idempotency_key "
    "FROM session_call call LEFT JOIN session_use use ON use.session_id = call.session_id AND use.attempt = :attempt "
    "AND use.digest = call.digest AND use.occurrence = call.occurrence "
    "WHERE call.session_id = :id AND call.digest = :digest ORDER BY call.occurrence"
)
_COUNT = (
    "UPDATE agent_session SET attempt = :attempt, uses = :uses, calls = :calls, "
    "opening_digest = coalesce(opening_digest, :digest) WHERE id = :id"
)
_USE = (
    "INSERT INTO session_use (session_id, attempt, number, digest, occurrence, idempotency_key) "
    "VALUES (:id, :attempt, :uses, :digest, :occurrence, :idempotency_key) "
    "ON CONFLICT (session_id, attempt, digest, occurrence) DO NOTHING"
)
_HOLD = (
    "INSERT INTO session_call (session_id, number, digest, occurrence, protocol, request, seed, holder, held_until, "
    "prompt_tokens, completion_tokens) VALUES (:id, :number, :digest, :occurrence, :protocol, :request, :seed, "
    ":holder, clock_timestamp() + :held, 0, 0) "
    "ON CONFLICT (session_id, number) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until"
)
_REPLAYED = text(f"WITH used AS ({_USE}) {_COUNT}")
_TAKEN = text(f"WITH used AS ({_USE}), held AS ({_HOLD}) {_COUNT}")
_ANSWER = text(
    "WITH session AS (SELECT id FROM agent_session WHERE id = :id AND state = 'open' "
    "AND expires_at > clock_timestamp() FOR UPDATE), "
    "answered AS (UPDATE session_call SET answer = :answer, model = :model, prompt_tokens = :prompt_tokens, "
    "completion_tokens = :completion_tokens, answered_at = clock_timestamp(), holder = NULL, held_until = NULL "
    "WHERE session_id = (SELECT id FROM session) AND number = :number AND answered_at IS NULL RETURNING number), "
    "counted AS (UPDATE agent_session SET prompt_tokens = prompt_tokens + :prompt_tokens, "
    "completion_tokens = completion_tokens + :completion_tokens "
    "WHERE id = :id AND EXISTS (SELECT 1 FROM answered)) "
    "SELECT EXISTS (SELECT 1 FROM session), EXISTS (SELECT 1 FROM answered)"
)
_RELEASE = text(
    "UPDATE session_call SET holder = NULL, held_until = NULL "
    "WHERE session_id = :id AND number = :number AND holder = :holder"
)
_RENEW = text(
    "UPDATE session_call SET held_until = clock_timestamp() + :held FROM "
    "unnest(CAST(:ids AS text[]), CAST(:numbers AS integer[])) AS mine (id, number) "
    "WHERE session_call.session_id = mine.id AND session_call.number = mine.number AND session_call.holder = :holder"
)


class SessionOver(Forbidden):
    """The session answers nothing more. Not a conflict: clients repeat a request after that."""

    title = "The session is over"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_over"}


class SessionRestarted(Forbidden):
    """The key is of an earlier start of the agent."""

    title = "The session was restarted"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_restarted"}


class SessionLimitReached(InvalidRequest):
    """The session allows no further call."""

    status = 400
    title = "The session's limit is reached"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_limit_reached"}


@dataclass(frozen=True, slots=True)
class Asker:
    """A session and the key by which it was named; None: its owner's key."""

    session_id: str
    key_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class TakenCall:
    """A call that this process samples now."""

    session_id: str
    number: int
    occurrence: int
    seed: int


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer of a call that was answered before."""

    number: int
    completion: dict[str, Json]


@dataclass
class SessionCalls:
    """The calls in the database, as one process works on them."""

    sessions: Sessions
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))
    _running: set[tuple[str, int]] = field(default_factory=set)

    async def begin(
        self, asker: Asker, request: CanonicalRequest, protocol: str, asked: Repetition
    ) -> TakenCall | RecordedAnswer:
        """Take the call that the request is, or find its answer; waits while somebody else works on it.

        Raises SessionOver, SessionRestarted, SessionLimitReached.
        """
        packed = pack_request(request)
        while (found := await self._try(asker, request, packed, protocol, asked)) is None:
            await asyncio.sleep(_LOOK_AGAIN_S)
        return found

    async def _try(
        self, asker: Asker, request: CanonicalRequest, packed: bytes, protocol: str, asked: Repetition
    ) -> TakenCall | RecordedAnswer | None:
        async with self.sessions.begin() as session:
            row = await _open_row(session, asker)
            calls = await self._same(session, asker.session_id, row.attempt, request.digest)
            attempt, uses = row.attempt, row.uses
            if not row.explicit_restart and request.digest == row.opening_digest and restarts(calls, asked):
                attempt, uses = attempt + 1, 0
                calls = await self._same(session, asker.session_id, attempt, request.digest)
            decision = decide(calls, asked)
            if isinstance(decision, Wait):
                return None
            is_new_use = decision.occurrence >= len(calls) or not calls[decision.occurrence].used
            if is_new_use:
                _check_limit("calls", uses, row.max_calls)
            values: dict[str, Json] = {
                "id": asker.session_id,
                "attempt": attempt,
                "uses": uses + is_new_use,
                "calls": row.calls,
                "digest": request.digest,
                "occurrence": decision.occurrence,
                "idempotency_key": asked.idempotency_key,
            }
            if isinstance(decision, Answered):
                await session.execute(_REPLAYED, values)
                return RecordedAnswer(decision.number, await _answer_of(session, asker.session_id, decision.number))
            _check_limit("tokens", row.tokens, row.max_tokens)
            taken = self._taken(asker.session_id, row, request, decision)
            values |= {
                "calls": max(row.calls, taken.number),
                "number": taken.number,
                "protocol": protocol,
                "request": packed,
                "seed": taken.seed,
                "holder": self._holder,
                "held": _HELD,
            }
            await session.execute(_TAKEN, values)
        self._running.add((taken.session_id, taken.number))
        return taken

    def _taken(self, session_id: str, row: Any, request: CanonicalRequest, decision: Begun) -> TakenCall:
        number = row.calls + 1 if decision.number is None else decision.number
        given = request.parameters.get("seed")
        seed = given if isinstance(given, int) else seed_of_call(row.seed, request.digest, decision.occurrence)
        return TakenCall(session_id, number, decision.occurrence, seed)

    async def _same(self, session: AsyncSession, id: str, attempt: int, digest: str) -> list[RecordedCall]:
        rows = await session.execute(_SAME, {"id": id, "attempt": attempt, "digest": digest})
        return [
            RecordedCall(
                row.number, row.occurrence, row.answered, self._holder_of(id, row), row.used, row.idempotency_key
            )
            for row in rows
        ]

    def _holder_of(self, id: str, row: Any) -> Holder:
        if row.holder == self._holder:
            return Holder.US if (id, row.number) in self._running else Holder.NOBODY
        return Holder.OTHER if row.holder is not None and row.held else Holder.NOBODY

    async def answer(self, call: TakenCall, completion: dict[str, Json]) -> dict[str, Json]:
        """Record the answer; when this returns it is durable. Returns the recorded one, which another process may have
        been the first to give. Raises SessionOver.

        A database that is away is waited for; cancelling does not undo what was sampled.
        """
        used = usage_of(completion)
        values = {
            "id": call.session_id,
            "number": call.number,
            "answer": pack_answer(completion),
            "model": completion.get("model"),
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
        }

        async def record() -> dict[str, Json]:
            async with self.sessions.begin() as session:
                is_open, is_first = (await session.execute(_ANSWER, values)).one()
                if not is_open:
                    raise SessionOver("The session ended before its model had answered.")
                return completion if is_first else await _answer_of(session, call.session_id, call.number)

        try:
            return await shielded(retry_while_database_is_down(record, _KEEP_TRYING_S))
        finally:
            self._running.discard((call.session_id, call.number))

    async def release(self, call: TakenCall) -> None:
        """Nobody works on the call any more; who asks for it again gets it."""
        if (call.session_id, call.number) not in self._running:
            return  # answered
        self._running.discard((call.session_id, call.number))
        values = {"id": call.session_id, "number": call.number, "holder": self._holder}

        async def let_go() -> None:
            async with self.sessions.begin() as session:
                await session.execute(_RELEASE, values)

        try:
            await shielded(let_go())
        except DATABASE_DOWN as error:  # others find out after a few seconds
            log.warning("a call was not released", session_id=call.session_id, error=str(error).splitlines()[0])

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """While open, others are told which calls this process works on."""
        async with every(_RENEW_EVERY_S, self.renew, "hold the calls of agent sessions"):
            yield

    async def renew(self) -> None:
        """Say that this process still works on its calls."""
        if not self._running:
            return
        ids, numbers = zip(*sorted(self._running), strict=True)
        values = {"ids": list(ids), "numbers": list(numbers), "holder": self._holder, "held": _HELD}
        async with self.sessions.begin() as session:
            await session.execute(_RENEW, values)

    async def kept(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[KeptCall]:
        """The calls of a session, in the order in which they began; those that are not answered yet, too."""
        used = (
            select(SessionUse.number)
            .join(AgentSession, AgentSession.id == SessionUse.session_id)
            .where(
                SessionUse.session_id == SessionCall.session_id,
                SessionUse.attempt == AgentSession.attempt,
                SessionUse.digest == SessionCall.digest,
                SessionUse.occurrence == SessionCall.occurrence,
            )
            .exists()
        )
        query = (
            select(SessionCall, used)
            .where(SessionCall.session_id == session_id, SessionCall.number > after)
            .order_by(SessionCall.number)
            .limit(limit)
        )
        async with self.sessions() as session:
            rows = (await session.execute(query)).all()
        return [_kept(call, in_use) for call, in_use in rows]

    async def of_last_attempt(self, session_id: str) -> list[AnsweredCall]:
        """The answered calls of the last attempt, in the order in which it made them: what is trained."""
        query = (
            select(SessionCall.request, SessionCall.answer)
            .join(AgentSession, AgentSession.id == SessionCall.session_id)
            .join(
                SessionUse,
                (SessionUse.session_id == SessionCall.session_id)
                & (SessionUse.attempt == AgentSession.attempt)
                & (SessionUse.digest == SessionCall.digest)
                & (SessionUse.occurrence == SessionCall.occurrence),
            )
            .where(SessionCall.session_id == session_id, SessionCall.answer.is_not(None))
            .order_by(SessionUse.number)
        )
        async with self.sessions() as session:
            rows = (await session.execute(query)).all()
        return await asyncio.to_thread(_answered_calls, rows)


def _answered_calls(rows: Sequence[Any]) -> list[AnsweredCall]:
    return [answered_call(unpack_request(request), unpack_answer(answer)) for request, answer in rows]


def _kept(call: SessionCall, used: bool) -> KeptCall:
    request: KeptRequest = unpack_request(call.request)
    return KeptCall(
        call.number,
        call.digest,
        call.occurrence,
        call.protocol,
        request,
        call.seed,
        None if call.answer is None else unpack_answer(call.answer),
        call.begun_at,
        call.answered_at,
        used,
    )


async def _open_row(session: AsyncSession, asker: Asker) -> Any:
    """The locked row of an open session. Raises SessionOver, SessionRestarted."""
    row = (await session.execute(_LOCKED, {"id": asker.session_id, "key": asker.key_sha256})).one_or_none()
    if row is None:
        raise SessionOver("The session was deleted.")
    if row.replaced:
        raise SessionRestarted("The agent was started again, with another key; this one is of an earlier start.")
    if row.state != AgentSessionState.OPEN or row.lapsed:
        state = AgentSessionState.EXPIRED if row.state == AgentSessionState.OPEN else row.state
        raise SessionOver(f"The session has {state}; it answers nothing more.")
    return row


async def _answer_of(session: AsyncSession, session_id: str, number: int) -> dict[str, Json]:
    found = await session.get_one(SessionCall, (session_id, number))
    assert found.answer is not None
    return unpack_answer(found.answer)


def _check_limit(of: str, count: int, most: int | None) -> None:
    if most is not None and count >= most:
        raise SessionLimitReached(("body",), f"The session's limit of {most} {of} is reached.")
