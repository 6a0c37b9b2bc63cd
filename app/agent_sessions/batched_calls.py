"""The fast path of a call, in two statements: one claims a new call, the other records its first answer.

Each statement handles all calls that are waiting at that moment. It skips the uncommon cases (a repeated request, a
limit, a session that is over or is being changed by another transaction), which `SessionCalls` handles step by step.

The commit of a new call does not wait for the disk. The commit of its answer does, and it also makes everything
committed before durable. A database that crashes in between loses the call; recording the answer then restores it.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.direct_connection import DirectConnection, GroupedStatement, arrays

Use = tuple[str, int, str, int]
"""A request of an attempt: session id, attempt, digest and occurrence."""
HELD = timedelta(seconds=6)
"""How long a call stays claimed after its process last renewed it."""
_TAKE = f"""
WITH asked AS (
    SELECT * FROM unnest(%(ids)s::text[], %(keys)s::text[], %(digests)s::text[], %(protocols)s::text[],
        %(idempotency_keys)s::text[], %(requests)b::bytea[], %(holders)s::text[], %(turns)s::integer[],
        %(seeds_in_turn)s::bigint[], %(seeds_otherwise)s::bigint[])
    AS asked (id, key, digest, protocol, idempotency_key, request, holder, turn, seed_in_turn, seed_otherwise)
), free AS (
    SELECT id FROM agent_session WHERE id = ANY (%(ids)s::text[]) FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
    UPDATE agent_session AS session SET uses = session.uses + 1, calls = session.calls + 1,
        opening_digest = coalesce(session.opening_digest, asked.digest)
    FROM asked JOIN free USING (id) JOIN agent_session AS seen USING (id)
    -- What this statement sees of the session's calls and keys is only right if the session did not change meanwhile.
    WHERE session.id = asked.id AND session.xmin = seen.xmin
        AND seen.state = 'open' AND seen.expires_at > clock_timestamp()
        AND (seen.max_calls IS NULL OR seen.uses < seen.max_calls)
        AND seen.max_tokens IS NULL
        AND NOT EXISTS (SELECT FROM agent_session_key AS key
            WHERE key.sha256 = asked.key AND key.session_id = asked.id AND key.replaced_at IS NOT NULL)
        AND NOT EXISTS (SELECT FROM session_call AS call
            WHERE call.session_id = asked.id AND call.digest = asked.digest)
    RETURNING session.id, session.attempt, session.uses, session.calls, asked.digest, asked.protocol,
        asked.idempotency_key, asked.request, asked.holder,
        CASE session.calls WHEN asked.turn THEN asked.seed_in_turn ELSE asked.seed_otherwise END AS seed
), used AS (
    INSERT INTO session_use (session_id, attempt, number, digest, occurrence, idempotency_key)
    SELECT id, attempt, uses, digest, 0, idempotency_key FROM taken
), held AS (
    INSERT INTO session_call (session_id, number, digest, occurrence, protocol, request, seed, holder, held_until,
        prompt_tokens, completion_tokens)
    SELECT id, calls, digest, 0, protocol, request, seed, holder,
        clock_timestamp() + interval '{HELD.total_seconds()} s', 0, 0 FROM taken
)
SELECT id, attempt, seed FROM taken
"""
_ANSWER = """
WITH made AS (
    SELECT * FROM unnest(%(ids)s::text[], %(digests)s::text[], %(occurrences)s::integer[], %(answers)b::bytea[],
        %(models)s::text[], %(prompt_tokens)s::integer[], %(completion_tokens)s::integer[])
    AS made (id, digest, occurrence, answer, model, prompt_tokens, completion_tokens)
), open AS (
    SELECT id FROM agent_session WHERE id = ANY (%(ids)s::text[]) AND state = 'open' AND expires_at > clock_timestamp()
    FOR NO KEY UPDATE SKIP LOCKED
), answered AS (
    UPDATE session_call AS call SET answer = made.answer, model = made.model, prompt_tokens = made.prompt_tokens,
        completion_tokens = made.completion_tokens, answered_at = clock_timestamp(), holder = NULL, held_until = NULL
    FROM made JOIN open USING (id)
    WHERE call.session_id = made.id AND call.digest = made.digest AND call.occurrence = made.occurrence
        AND call.answered_at IS NULL
    RETURNING made.id, made.prompt_tokens, made.completion_tokens
), counted AS (
    UPDATE agent_session AS session SET prompt_tokens = session.prompt_tokens + answered.prompt_tokens,
        completion_tokens = session.completion_tokens + answered.completion_tokens
    FROM answered WHERE session.id = answered.id
)
SELECT id FROM answered
"""
_DELIVERED = """
UPDATE session_use AS use SET delivered_at = clock_timestamp()
FROM unnest(%(ids)s::text[], %(attempts)s::integer[], %(digests)s::text[], %(occurrences)s::integer[])
    AS mine (id, attempt, digest, occurrence)
WHERE use.session_id = mine.id AND use.attempt = mine.attempt AND use.digest = mine.digest
    AND use.occurrence = mine.occurrence
"""


class NewCall(NamedTuple):
    """A call to claim if it is the first with its digest in the session."""

    session_id: str
    key_sha256: str | None
    digest: str
    protocol: str
    idempotency_key: str | None
    request: bytes
    holder: str
    turn: int
    """The same as in CallSeeds."""
    seed_in_turn: int
    seed_otherwise: int


class TakenCall(NamedTuple):
    """The attempt and the seed of a call that was claimed."""

    attempt: int
    seed: int


class NewAnswer(NamedTuple):
    """The answer to a call, to record if it has none yet."""

    session_id: str
    digest: str
    occurrence: int
    answer: bytes
    model: str | None
    prompt_tokens: int
    completion_tokens: int


_CALL_COLUMNS = (
    "ids",
    "keys",
    "digests",
    "protocols",
    "idempotency_keys",
    "requests",
    "holders",
    "turns",
    "seeds_in_turn",
    "seeds_otherwise",
)
_ANSWER_COLUMNS = ("ids", "digests", "occurrences", "answers", "models", "prompt_tokens", "completion_tokens")
_USE_COLUMNS = ("ids", "attempts", "digests", "occurrences")


class BatchedCalls:
    """The fast path for all sessions, in one process."""

    def __init__(self, url: URL) -> None:
        self._async_commit = DirectConnection(url, synchronous_commit="off")
        self._durable = DirectConnection(url)
        self._taking = GroupedStatement(self._async_commit, _TAKE, _CALL_COLUMNS)
        self._answering = GroupedStatement(self._durable, _ANSWER, _ANSWER_COLUMNS)

    async def take(self, call: NewCall) -> TakenCall | None:
        """Claim the call. Returns None if it was not claimed, as far as is known."""
        row = await self._taking.row(*call)
        return None if row is None else TakenCall(*row[1:])

    async def answer(self, answer: NewAnswer) -> bool:
        """Return whether the answer was recorded durably. If False, it can be recorded nevertheless."""
        return await self._answering.row(*answer) is not None

    async def delivered(self, uses: Collection[Use]) -> bool:
        """Record which replies were delivered. Returns whether that worked."""
        return await self._async_commit.execute(_DELIVERED, arrays(_USE_COLUMNS, sorted(uses))) is not None

    async def close(self) -> None:
        """Wait for running statements, and close the connections."""
        for statement in (self._taking, self._answering):
            await statement.end()
        for connection in (self._async_commit, self._durable):
            await connection.close()


async def answer_in(tx: AsyncSession, answer: NewAnswer) -> bool:
    """Like `BatchedCalls.answer`, in a transaction that holds the lock on the session's row."""
    connection = await tx.connection()
    rows = await connection.exec_driver_sql(_ANSWER, arrays(_ANSWER_COLUMNS, [answer]))
    return rows.first() is not None


async def delivered_in(tx: AsyncSession, uses: Collection[Use]) -> None:
    """Like `BatchedCalls.delivered`, in a transaction."""
    await (await tx.connection()).exec_driver_sql(_DELIVERED, arrays(_USE_COLUMNS, sorted(uses)))
