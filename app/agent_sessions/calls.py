"""The calls of agent sessions: all SQL that begins, answers and reads them.

A request takes two transactions. The first one locks the session's row, decides which call the request is (see
`replay`), and claims it for this process. The second one records the answer before the last part of it is sent. In the
common case each of them is one statement for many calls (see `batched_calls`). Every two seconds a process renews its
claims. If it is silent for six seconds, another process can sample the calls again, as the same calls with the same
seeds.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from sqlalchemy import and_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.agent_sessions.batched_calls import (
    HELD,
    BatchedCalls,
    NewAnswer,
    NewCall,
    Use,
    answer_in,
    delivered_in,
)
from learnloop_service.app.agent_sessions.canonical import CallSeeds, CanonicalRequest, seeds_of_call
from learnloop_service.app.agent_sessions.records import (
    KeptCall,
    KeptRequest,
    answered_call,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
    usage_of,
)
from learnloop_service.app.agent_sessions.replay import (
    Answered,
    CallInProgress,
    Holder,
    RecordedCall,
    Repetition,
    decide,
    restarts,
)
from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.aio.periodic import every
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import storable_text
from learnloop_service.app.db.tables import AgentSession, SessionCall, SessionUse
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.errors import DATABASE_DOWN, Forbidden, InvalidRequest
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.model_calls import AnsweredCall

CallKey = tuple[str, str, int]
"""Session id, digest and occurrence."""
_RENEW_EVERY_S = 2.0
_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
_USUAL_TOKENS = 1_024
"""Tokens that a reply is expected to have if its request sets no limit."""
_BYTES_OF_TOKEN = 4
_DELIVERY_DELAY_S = 0.2
_MAX_RETRY_S = 60.0
"""Longest time to retry recording an answer while the database is down, in seconds."""

log = structlog.get_logger(__name__)

_LOCKED = text(
    "SELECT state, attempt, uses, calls, opening_digest, explicit_restart, seed, max_calls, max_tokens, "
    "prompt_tokens + completion_tokens AS tokens, expires_at <= clock_timestamp() AS lapsed, EXISTS (SELECT 1 FROM "
    "agent_session_key WHERE sha256 = :key AND session_id = :id AND replaced_at IS NOT NULL) AS replaced "
    "FROM agent_session WHERE id = :id FOR UPDATE"
)
_LATER = (
    "SELECT 1 FROM session_use later WHERE later.session_id = use.session_id AND later.attempt = use.attempt "
    "AND later.number > use.number AND later.begun_at > call.answered_at"
)
_SAME = text(
    "SELECT call.number, call.occurrence, call.seed, call.answered_at IS NOT NULL AS answered, call.holder, "
    "coalesce(call.held_until > clock_timestamp(), false) AS held, use.number AS use, use.idempotency_key, "
    f"use.delivered_at IS NOT NULL OR EXISTS ({_LATER}) AS delivered "
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
    "VALUES (:id, :attempt, :use, :digest, :occurrence, :idempotency_key) "
    "ON CONFLICT (session_id, attempt, digest, occurrence) DO NOTHING"
)
_HOLD = (
    "INSERT INTO session_call (session_id, number, digest, occurrence, protocol, request, seed, holder, held_until, "
    "prompt_tokens, completion_tokens) VALUES (:id, :number, :digest, :occurrence, :protocol, :request, :seed, "
    ":holder, clock_timestamp() + :held, 0, :expected) "
    "ON CONFLICT (session_id, number) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until"
)
_EXPECTED = text(
    "SELECT coalesce(sum(completion_tokens), 0) FROM session_call "
    "WHERE session_id = :id AND answered_at IS NULL AND held_until > clock_timestamp()"
)
_REPLAYED = text(f"WITH used AS ({_USE}) {_COUNT}")
_TAKEN = text(f"WITH used AS ({_USE}), held AS ({_HOLD}) {_COUNT}")
_RELEASE = text(
    "UPDATE session_call SET holder = NULL, held_until = NULL "
    "WHERE session_id = :id AND digest = :digest AND occurrence = :occurrence AND holder = :holder"
)
# A call that is locked is being answered and needs no claim. To wait for it could be a deadlock: the answers of many
# calls are recorded in one statement, too, and neither locks its rows in an order.
_RENEW = text(
    "WITH free AS (SELECT call.session_id, call.number FROM session_call AS call JOIN unnest(CAST(:ids AS text[]), "
    "CAST(:digests AS text[]), CAST(:occurrences AS integer[])) AS mine (id, digest, occurrence) "
    "ON call.session_id = mine.id AND call.digest = mine.digest AND call.occurrence = mine.occurrence "
    "WHERE call.holder = :holder FOR NO KEY UPDATE OF call SKIP LOCKED) "
    "UPDATE session_call AS call SET held_until = clock_timestamp() + :held FROM free "
    "WHERE call.session_id = free.session_id AND call.number = free.number"
)
_RECORDED = text(
    "SELECT answer FROM session_call WHERE session_id = :id AND digest = :digest AND occurrence = :occurrence"
)


_OF_LAST_ATTEMPT = (
    SessionUse.session_id == SessionCall.session_id,
    SessionUse.attempt == AgentSession.attempt,
    SessionUse.digest == SessionCall.digest,
    SessionUse.occurrence == SessionCall.occurrence,
)


class SessionOver(Forbidden):
    """The session accepts no more requests. It is not a Conflict, because clients retry those."""

    title = "The session is over"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_over"}


class SessionRestarted(Forbidden):
    """The key belongs to an earlier attempt."""

    title = "The session was restarted"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_restarted"}


class SessionLimitReached(InvalidRequest):
    """A limit of the session, on calls or tokens, is reached."""

    status = 400
    title = "The session's limit is reached"

    def members(self) -> Mapping[str, Any]:
        return {"code": "session_limit_reached"}


@dataclass(frozen=True, slots=True)
class SessionCaller:
    """A session and the hash of the session key that identifies it; None if its owner used an API key."""

    session_id: str
    key_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A request, matched to a call."""

    session_id: str
    attempt: int
    digest: str
    occurrence: int
    seed: int
    recorded: dict[str, Json] | None = None
    """The recorded answer; None if this process is to sample it."""
    claimed: NewCall | None = None
    """The call as claimed by the fast path, whose commit a crash of the database can lose."""

    @property
    def key(self) -> "CallKey":
        """Session id, digest and occurrence of the call."""
        return self.session_id, self.digest, self.occurrence


@dataclass
class SessionCalls:
    """The calls in the database, as one process works on them."""

    database: Database
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))
    _replying: Counter[CallKey] = field(default_factory=Counter)
    """Calls that are being sampled or whose answers are being sent."""
    _sampling: set[CallKey] = field(default_factory=set)
    _claiming: Counter[CallKey] = field(default_factory=Counter)
    """Calls that this process is claiming; whether it has them is not known yet."""
    _delivered: set[Use] = field(default_factory=set)
    """Requests whose replies were delivered but not yet recorded as such."""
    _delivery_task: asyncio.Task[None] | None = None
    _batched: BatchedCalls | None = None
    """The fast path; None if all calls take the slow one."""

    async def begin(
        self,
        asker: SessionCaller,
        request: CanonicalRequest,
        protocol: str,
        repetition: Repetition,
        seeds: CallSeeds | None = None,
    ) -> BegunCall:
        """Claim the call that the request is, or find its answer. The caller must `finish` it. With `seeds`, which are
        those of a first request with this digest, the fast path is tried first.

        Waits while someone else works on the call, and while calls under way can use up the session's tokens.

        Raises SessionOver, SessionRestarted, SessionLimitReached.
        """
        packed = pack_request(request)
        if self._batched is not None and seeds is not None:
            who, key = (asker.session_id, asker.key_sha256), repetition.idempotency_key
            new = NewCall(*who, request.digest, protocol, key, packed, self._holder, *seeds)
            if (call := await self._claim_batched(self._batched, new)) is not None:
                return call
        pause_s = _POLL_S
        while (begun := await self._claim(asker, request, packed, protocol, repetition)) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_POLL_S)
        return begun

    async def require_open(self, asker: SessionCaller) -> None:
        """Check that the session is open. Raises SessionOver, SessionRestarted."""
        async with self.database.begin() as tx:
            await _open_row(tx, asker)

    async def _claim_batched(self, batched: BatchedCalls, new: NewCall) -> BegunCall | None:
        """Claim the call by the fast path; None if it is not new or could not be claimed."""
        key = new.session_id, new.digest, 0
        self._claiming[key] += 1
        try:
            claim = await batched.take(new)
        except asyncio.CancelledError:
            if key not in self._replying:  # otherwise another request of this process has claimed it
                await self._release(key)
            raise
        finally:
            self._claiming[key] -= 1
            self._claiming += Counter()  # drops zero counts
        if claim is None:
            return None
        self._replying[key] += 1
        self._sampling.add(key)
        return BegunCall(new.session_id, claim.attempt, new.digest, 0, claim.seed, claimed=new)

    async def _claim(
        self, asker: SessionCaller, request: CanonicalRequest, packed: bytes, protocol: str, repetition: Repetition
    ) -> BegunCall | None:
        async with AsyncExitStack() as unless_begun:
            async with self.database.begin() as tx:
                row = await _open_row(tx, asker)
                calls = await self._same(tx, asker.session_id, row.attempt, request.digest)
                attempt, uses = row.attempt, row.uses
                if not row.explicit_restart and request.digest == row.opening_digest and restarts(calls, repetition):
                    attempt, uses = attempt + 1, 0
                    calls = await self._same(tx, asker.session_id, attempt, request.digest)
                decision = decide(calls, repetition)
                if isinstance(decision, CallInProgress):
                    return None
                use = calls[decision.occurrence].use if decision.occurrence < len(calls) else None
                if use is None:
                    _check_limit("calls", uses, row.max_calls)
                    uses += 1
                if decision.number is None:
                    number = row.calls + 1
                    seed = seeds_of_call(row.seed, request, decision.occurrence).of(number)
                else:
                    number, seed = decision.number, calls[decision.occurrence].seed
                call = BegunCall(asker.session_id, attempt, request.digest, decision.occurrence, seed)
                values: dict[str, Json] = {
                    "id": call.session_id,
                    "attempt": attempt,
                    "uses": uses,
                    "use": use or uses,
                    "calls": max(row.calls, number),
                    "digest": request.digest,
                    "occurrence": decision.occurrence,
                    "idempotency_key": repetition.idempotency_key,
                }
                # Count the call before the commit, so that other requests see that this process works on it.
                self._replying[call.key] += 1
                unless_begun.callback(self._forget, call)
                if isinstance(decision, Answered):
                    await tx.execute(_REPLAYED, values)
                    call = replace(call, recorded=await _answer_of(tx, call))
                elif not await _has_tokens(tx, call.session_id, row):
                    return None
                else:
                    claim = {"number": number, "seed": seed, "holder": self._holder, "held": HELD}
                    what = {"protocol": protocol, "request": packed, "expected": _expected_tokens(request)}
                    await tx.execute(_TAKEN, values | claim | what)
                    self._sampling.add(call.key)
            unless_begun.pop_all()
        return call

    async def _same(self, tx: AsyncSession, id: str, attempt: int, digest: str) -> list[RecordedCall]:
        rows = await tx.execute(_SAME, {"id": id, "attempt": attempt, "digest": digest})
        return [
            RecordedCall(
                row.number,
                row.occurrence,
                row.seed,
                row.answered,
                self._holder_of((id, digest, row.occurrence), row),
                row.use,
                row.delivered or (id, attempt, digest, row.occurrence) in self._delivered,
                row.idempotency_key,
            )
            for row in rows
        ]

    def _holder_of(self, key: CallKey, row: Any) -> Holder:
        if key in self._replying or (row.holder == self._holder and key in self._claiming):
            return Holder.US
        of_another = row.holder not in (None, self._holder)
        return Holder.OTHER if of_another and row.held else Holder.NONE

    async def answer(self, call: BegunCall, completion: dict[str, Json]) -> dict[str, Json]:
        """Record the answer durably. Returns the recorded answer, which is another process's if that was first. Raises
        SessionOver.

        While the database is down this retries. If it is cancelled, the answer is recorded nevertheless.
        """
        answer = _new_answer(call, completion)
        try:
            is_recorded = self._batched is not None and await self._batched.answer(answer)
        except asyncio.CancelledError:  # it may or may not have been recorded
            await asyncio.wait({asyncio.ensure_future(self._record_with_retries(call, completion, answer))})
            raise
        if not is_recorded:
            return await shielded(self._record_with_retries(call, completion, answer))
        self._sampling.discard(call.key)
        return completion

    async def _record_with_retries(
        self, call: BegunCall, completion: dict[str, Json], answer: NewAnswer
    ) -> dict[str, Json]:
        async def record() -> dict[str, Json]:
            return await self._record(call, completion, answer)

        recorded = await retry_while_database_is_down(record, _MAX_RETRY_S)
        self._sampling.discard(call.key)
        return recorded

    async def _record(self, call: BegunCall, completion: dict[str, Json], answer: NewAnswer) -> dict[str, Json]:
        async with self.database.begin() as tx:
            row = (await tx.execute(_LOCKED, {"id": call.session_id, "key": None})).one_or_none()
            if row is None or row.state != AgentSessionState.OPEN or row.lapsed:
                raise SessionOver("The session ended before its model had answered.")
            if await answer_in(tx, answer):
                return completion
            recorded = await _answer_of(tx, call)
            if recorded is None:
                await self._reinsert(tx, call, row)
                await answer_in(tx, answer)
        # It can be our own answer, if the connection broke after the commit.
        return completion if recorded in (None, completion) else recorded

    async def _reinsert(self, tx: AsyncSession, call: BegunCall, row: Any) -> None:
        """Insert the call again, because the database lost it in a crash."""
        log.warning("a database that crashed had forgotten a call", session_id=call.session_id)
        assert call.claimed is not None
        await tx.execute(
            _TAKEN,
            {
                "id": call.session_id,
                "attempt": call.attempt,
                "uses": row.uses + 1,
                "use": row.uses + 1,
                "calls": row.calls + 1,
                "number": row.calls + 1,
                "digest": call.digest,
                "occurrence": call.occurrence,
                "idempotency_key": call.claimed.idempotency_key,
                "protocol": call.claimed.protocol,
                "request": call.claimed.request,
                "seed": call.seed,
                "holder": self._holder,
                "held": HELD,
                "expected": 0,
            },
        )

    async def finish(self, call: BegunCall, *, delivered: bool) -> None:
        """Stop working on the call. If it was not answered or the reply was not delivered, the same request asks for it
        again."""
        is_unanswered = call.recorded is None and call.key in self._sampling
        self._forget(call)
        if delivered:
            self._delivered.add((call.session_id, call.attempt, call.digest, call.occurrence))
            self._delivery_task = self._delivery_task or asyncio.create_task(
                self._note_delivered(), name="note deliveries"
            )
        elif is_unanswered:
            await self._release(call.key)

    def _forget(self, call: BegunCall) -> None:
        self._replying[call.key] -= 1
        if not self._replying[call.key]:
            del self._replying[call.key]
        if call.recorded is None:
            self._sampling.discard(call.key)

    async def _release(self, call: CallKey) -> None:
        id, digest, occurrence = call
        values = {"id": id, "digest": digest, "occurrence": occurrence, "holder": self._holder}

        async def let_go() -> None:
            async with self.database.begin() as tx:
                await tx.execute(_RELEASE, values)

        try:
            await shielded(let_go())
        except DATABASE_DOWN as error:  # the claim expires after a few seconds anyway
            log.warning("a call was not released", session_id=id, error=first_line(error))

    async def _note_delivered(self) -> None:
        """Record deliveries in batches until none is left. Those that are lost with this process count as not
        delivered, unless the agent has made a later request."""
        try:
            while self._delivered:
                await asyncio.sleep(_DELIVERY_DELAY_S)
                noted = set(self._delivered)
                await self._record_delivered(noted)
                self._delivered.difference_update(noted)
        finally:
            self._delivery_task = None

    async def _record_delivered(self, uses: set[Use]) -> None:
        try:
            if self._batched is None or not await self._batched.delivered(uses):
                async with self.database.begin() as tx:
                    await tx.execute(text("SET LOCAL synchronous_commit = off"))
                    await delivered_in(tx, uses)
        except DATABASE_DOWN as error:
            log.warning("deliveries were not noted", error=first_line(error))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Renew this process's claims and use the fast path while the context is open."""
        batched = self._batched = BatchedCalls(self.database.kw["bind"].url)
        try:
            async with every(_RENEW_EVERY_S, self.renew, "hold the calls of agent sessions"):
                yield
        finally:
            if self._delivery_task is not None:
                await self._delivery_task
            self._batched = None
            await batched.close()

    async def renew(self) -> None:
        """Renew this process's claims."""
        if not self._sampling:
            return
        ids, digests, occurrences = (list(column) for column in zip(*sorted(self._sampling), strict=True))
        values = {"ids": ids, "digests": digests, "occurrences": occurrences, "holder": self._holder, "held": HELD}
        async with self.database.begin() as tx:
            await tx.execute(_RENEW, values)

    async def listed(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[KeptCall]:
        """Return the calls of a session, including unanswered ones, in the order in which they began."""
        used = (
            select(SessionUse.number)
            .join(AgentSession, AgentSession.id == SessionUse.session_id)
            .where(*_OF_LAST_ATTEMPT)
            .exists()
        )
        query = (
            select(SessionCall, used)
            .where(SessionCall.session_id == session_id, SessionCall.number > after)
            .order_by(SessionCall.number)
            .limit(limit)
        )
        async with self.database() as tx:
            rows = (await tx.execute(query)).all()
        return [_stored_call(call, in_use) for call, in_use in rows]

    async def of_last_attempt(self, session_id: str) -> list[AnsweredCall]:
        """Return the answered calls of the last attempt in the order of its requests. They are what is trained on."""
        query = (
            select(SessionCall.request, SessionCall.answer)
            .join(AgentSession, AgentSession.id == SessionCall.session_id)
            .join(SessionUse, and_(*_OF_LAST_ATTEMPT))
            .where(SessionCall.session_id == session_id, SessionCall.answer.is_not(None))
            .order_by(SessionUse.number)
        )
        async with self.database() as tx:
            rows = (await tx.execute(query)).all()
        return await asyncio.to_thread(_answered_calls, rows)


def _answered_calls(rows: Sequence[Any]) -> list[AnsweredCall]:
    return [answered_call(unpack_request(request), unpack_answer(answer)) for request, answer in rows]


def _stored_call(call: SessionCall, used: bool) -> KeptCall:
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


async def _open_row(tx: AsyncSession, asker: SessionCaller) -> Any:
    """Lock and return the row of an open session. Raises SessionOver, SessionRestarted."""
    row = (await tx.execute(_LOCKED, {"id": asker.session_id, "key": asker.key_sha256})).one_or_none()
    if row is None:
        raise SessionOver("The session was deleted.")
    if row.replaced:
        raise SessionRestarted("The agent was started again, with another key; this one is of an earlier start.")
    if row.state != AgentSessionState.OPEN or row.lapsed:
        state = AgentSessionState.EXPIRED if row.state == AgentSessionState.OPEN else row.state
        raise SessionOver(f"The session has {state}; it answers nothing more.")
    return row


async def _answer_of(tx: AsyncSession, call: BegunCall) -> dict[str, Json] | None:
    values = {"id": call.session_id, "digest": call.digest, "occurrence": call.occurrence}
    packed = (await tx.execute(_RECORDED, values)).scalar_one_or_none()
    return None if packed is None else unpack_answer(packed)


def _new_answer(call: BegunCall, completion: Mapping[str, Json]) -> NewAnswer:
    used, model = usage_of(completion), completion.get("model")
    name = storable_text(model) if isinstance(model, str) else None
    return NewAnswer(*call.key, pack_answer(completion), name, used.prompt_tokens, used.completion_tokens)


async def _has_tokens(tx: AsyncSession, session_id: str, row: Any) -> bool:
    """Return whether calls under way leave any of the session's tokens. Raises SessionLimitReached if none is left."""
    _check_limit("tokens", row.tokens, row.max_tokens)
    if row.max_tokens is None:
        return True
    remaining: int = row.max_tokens - row.tokens - (await tx.execute(_EXPECTED, {"id": session_id})).scalar_one()
    return remaining > 0


def _expected_tokens(request: CanonicalRequest) -> int:
    """Estimate the tokens of a call, which count toward its session's limit until it is answered."""
    parameters = request.parameters
    limit = parameters.get("max_completion_tokens") or parameters.get("max_tokens")
    reply = limit if isinstance(limit, int) and limit > 0 else _USUAL_TOKENS
    prompt_bytes = sum(len(str(message.get("content") or "").encode(errors="replace")) for message in request.messages)
    return min(prompt_bytes // _BYTES_OF_TOKEN + reply, 2**31 - 1)


def _check_limit(of: str, count: int, most: int | None) -> None:
    if most is not None and count >= most:
        raise SessionLimitReached(
            ("body",),
            # Without the number: opencode and pi repeat a request whose error has the digits 429 or 500.
            f"The session's limit of {of} is reached, and it answers no new requests. Open another session, with a "
            f"higher limits.max_{of} if the agent needs it.",
        )
