"""The model of an agent session: records what the agent asks, samples it or finds the recorded answer.

An answer is durable before its last part leaves. Pieces of a stream pass through as they come; what ends the reply is
held back until the answer is recorded. A server that is away for a moment is asked again: the call has its seed and the
token ids of earlier replies, so the same reply is sampled.

The model is asked while the database takes the call, if the request is the next turn of a conversation whose last turn
this process took: then the call is almost surely a new one, with a seed that is known. If it is another, what was asked
is given up.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from app.agent_sessions.calls import Asker, BegunCall, SessionCalls
from app.agent_sessions.canonical import CanonicalRequest, canonical, seeds_of_call
from app.agent_sessions.replay import Repetition
from app.agent_sessions.store import AgentSessions
from app.aio.event_loops import shielded
from app.aio.periodic import every
from app.db.database import Database
from app.db.tables import AgentSession, Run
from app.errors import NotFound
from app.gateway.chunks import AnotherReply, Assembly, Chunk, chunks_of
from app.gateway.known_replies import KnownReplies
from app.gateway.upstream import ServerAway, Upstream
from app.model_registry.resolver import ModelResolver, ResolvedModel, base_models
from app.resources import Resources
from environment.json_type import Json
from training.backends import embedded
from training.backends.base import Endpoint
from training.rollout.model_calls import Sampling

Result = TypeVar("Result")
_AWAY_S = 60.0
"""For so long a server that cannot be reached is asked again."""
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_MOST_KNOWN = 10_000
_ENDPOINT_KEPT_S = 10.0
"""A server that is asked again after it was away may have moved by then."""
_EXPIRE_EVERY_S = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class KnownSession:
    """What never changes of a session, and how far its conversation has come."""

    id: str
    model: ResolvedModel
    sampling: Sampling | None
    seed: int
    turn: int | None = None
    """The last one that this process took; None: it took none."""


@dataclass(frozen=True, slots=True)
class BegunStream:
    """A stream whose first chunk has come."""

    first: Chunk | None
    """None: it ended without one."""
    rest: AsyncGenerator[Chunk]

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """All of them."""
        async with aclosing(self.rest):
            if self.first is not None:
                yield self.first
                async for chunk in self.rest:
                    yield chunk


class SessionGateway:
    """For all sessions, in one process."""

    def __init__(self, database: Database, calls: SessionCalls, models: ModelResolver, upstream: Upstream) -> None:
        self._database = database
        self.calls = calls
        self._models = models
        self.upstream = upstream
        self._replies = KnownReplies(database)
        self._known: OrderedDict[str, KnownSession] = OrderedDict()
        self._endpoints: dict[tuple[str, str, int | None], tuple[Endpoint, float]] = {}
        """Of checkpoints on other backends, and until when that is taken for right."""

    async def begin(
        self, asker: Asker, body: dict[str, Json], protocol: str, asked: Repetition, *, is_streamed: bool
    ) -> "SessionExchange":
        """Begin an exchange, which must be finished. Raises BadRequestBody, and as SessionCalls.begin."""
        session = await self._session(asker.session_id)
        request = canonical(body, session.sampling)
        seeds, early = seeds_of_call(session.seed, request, 0), None
        if session.turn is not None and seeds.turn == session.turn + 1:
            session.turn = seeds.turn  # the same once more is not the next turn
            ask = self.begun_stream if is_streamed else self.sampled
            early = asyncio.create_task(ask(session, request, seeds.in_turn), name="ask early")
        try:
            call = await self.calls.begin(asker, request, protocol, asked, seeds)
            exchange = SessionExchange(self, session, request, call, early)
            if call.recorded is None and call.seed == seeds.in_turn:
                session.turn = seeds.turn
            else:
                await exchange.give_up_early()
        except BaseException:
            await shielded(_give_up(early))
            raise
        return exchange

    async def _session(self, id: str) -> KnownSession:
        if (kept := self._known.get(id)) is not None:
            return kept
        async with self._database() as tx:
            row = await tx.get(AgentSession, id)
            run = None if row is None or row.model_run_id is None else await tx.get(Run, row.model_run_id)
        if row is None:
            raise NotFound(f"There is no session {id!r}.")
        if run is None and row.backend != embedded.NAME:
            raise NotFound(f"The run that trained {row.model} was deleted; only with it the model can be found.")
        known = KnownSession(
            id,
            ResolvedModel(row.model, row.step, run),
            None if row.sampling is None else Sampling(**row.sampling),
            row.seed,
        )
        self._known[id] = known
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return known

    async def count_tokens(self, asker: Asker, body: dict[str, Json]) -> int:
        """Tokens of the prompt of that request. Nothing is recorded. Raises BadRequestBody, SessionOver,
        SessionRestarted, and as Upstream."""
        session = await self._session(asker.session_id)
        await self.calls.require_open(asker)
        request = canonical(body, session.sampling)

        async def ask() -> int:
            return await self.upstream.count_tokens(*await self._asked(session, request))

        return await _while_away(ask)

    async def endpoint(self, session: KnownSession) -> Endpoint:
        """Where the session's checkpoint is sampled now; another backend than the engine is asked for it once in a
        while. Raises Unavailable."""
        model, now = session.model, time.monotonic()
        if model.backend == embedded.NAME:
            return await self._models.endpoint(model)
        which = (model.backend, model.name, model.step)
        known, until = self._endpoints.get(which, (None, 0.0))
        if known is None or until < now:
            known = await self._models.endpoint(model)
            self._endpoints[which] = (known, now + _ENDPOINT_KEPT_S)
            self._endpoints = {each: kept for each, kept in self._endpoints.items() if kept[1] >= now}
        return known

    async def sampled(self, session: KnownSession, request: CanonicalRequest, seed: int) -> dict[str, Json]:
        """A completion of the model. Raises as Upstream."""

        async def ask() -> dict[str, Json]:
            return await self.upstream.complete(*await self._request(session, request, seed))

        return await _while_away(ask)

    async def begun_stream(self, session: KnownSession, request: CanonicalRequest, seed: int) -> BegunStream:
        """The same as a stream, which is begun again as long as nothing of it has come. Raises as Upstream."""

        async def ask() -> BegunStream:
            endpoint, body = await self._request(session, request, seed)
            stream = self.upstream.chunks(endpoint, {**body, "stream_options": {"include_usage": True}})
            return BegunStream(await anext(stream, None), stream)

        return await _while_away(ask)

    async def _request(
        self, session: KnownSession, request: CanonicalRequest, seed: int
    ) -> tuple[Endpoint, dict[str, Json]]:
        endpoint, body = await self._asked(session, request)
        more: dict[str, Json] = {"return_token_ids": True} if endpoint.tells_token_ids else {}
        return endpoint, {**body, "seed": seed, "logprobs": True, **more}

    async def _asked(self, session: KnownSession, asked: CanonicalRequest) -> tuple[Endpoint, dict[str, Json]]:
        """What the model is asked, and where; replies of the engine with their token ids."""
        endpoint = await self.endpoint(session)
        is_engine = session.model.backend == embedded.NAME
        messages = await self._replies.messages(session.id, asked) if is_engine else list(asked.messages)
        tools: dict[str, Json] = {"tools": list(asked.tools)} if asked.tools else {}
        return endpoint, {**asked.parameters, "model": endpoint.model, "messages": messages, **tools}

    async def record(self, exchange: "SessionExchange", completion: dict[str, Json]) -> dict[str, Json]:
        """Make the answer durable; returns the one that counts. Raises SessionOver."""
        recorded = await self.calls.answer(exchange.call, completion)
        asked = exchange.request
        which = asked.digest, exchange.call.occurrence
        self._replies.add(exchange.session.id, which, asked.conversations[-1], recorded)
        return recorded

    async def finish(self, exchange: "SessionExchange", *, delivered: bool) -> None:
        """The reply has been sent, or will not be."""
        await self.calls.finish(exchange.call, delivered=delivered)


@asynccontextmanager
async def open_session_gateway(service: Resources) -> AsyncIterator[SessionGateway]:
    """The gateway of a running service."""
    calls, store = SessionCalls(service.database), AgentSessions(service.database)
    models = ModelResolver(service.database, service.engine, service.connect, base_models(service.settings))
    async with (
        aclosing(Upstream()) as upstream,
        calls.working(),
        every(_EXPIRE_EVERY_S, store.expire, "expire agent sessions"),
    ):
        yield SessionGateway(service.database, calls, models, upstream)


@dataclass(slots=True)
class SessionExchange:
    """One request of an agent, until its reply has been sent."""

    gateway: SessionGateway
    session: KnownSession
    request: CanonicalRequest
    call: BegunCall
    early: asyncio.Task[Any] | None
    """The model's reply, if it was asked for before the call was taken: a completion, or a BegunStream."""

    @property
    def is_replay(self) -> bool:
        """Whether the answer was recorded before."""
        return self.call.recorded is not None

    async def completion(self) -> dict[str, Json]:
        """The durable answer."""
        if self.call.recorded is not None:
            return self.call.recorded
        return await self.gateway.record(self, await self._reply(self.gateway.sampled))

    async def _reply(self, ask: Callable[[KnownSession, CanonicalRequest, int], Awaitable[Result]]) -> Result:
        """What the model was asked for early, or is asked for now."""
        if self.early is None:
            return await ask(self.session, self.request, self.call.seed)
        reply: Result = await self.early
        self.early = None
        return reply

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The same as a stream; chunks that end a choice come when the answer is durable.

        Raises what `completion` raises, and AnotherReply.
        """
        if self.call.recorded is not None:
            for chunk in chunks_of(self.call.recorded):
                yield chunk
            return
        assembly, held = Assembly(), list[Chunk]()
        try:
            stream = (await self._reply(self.gateway.begun_stream)).chunks()
            async with aclosing(stream):
                async for chunk in stream:
                    assembly.add(chunk)
                    if held or _ends(chunk):
                        held.append(chunk)
                    else:
                        yield chunk
            if not assembly.is_whole:
                raise ServerAway("The server of the model ended the stream too soon.")
            sampled = assembly.completion()
        except ServerAway as error:
            log.info("a stream broke off and is sampled again", session_id=self.session.id, error=str(error))
            sampled = await self.gateway.sampled(self.session, self.request, self.call.seed)
            held = list(assembly.rest_of(sampled))
        if await self.gateway.record(self, sampled) is not sampled:
            raise AnotherReply("Another process has answered this request meanwhile; repeat it.")
        for chunk in held:
            yield chunk

    async def finish(self, *, delivered: bool) -> None:
        """The reply has been sent, or will not be."""
        await self.give_up_early()
        await self.gateway.finish(self, delivered=delivered)

    async def give_up_early(self) -> None:
        """What was asked for early is not wanted."""
        early, self.early = self.early, None
        await _give_up(early)


async def _give_up(early: "asyncio.Task[Any] | None") -> None:
    if early is None:
        return
    early.cancel()
    await asyncio.wait({early})
    if not early.cancelled() and early.exception() is None and isinstance(begun := early.result(), BegunStream):
        await begun.rest.aclose()


def _ends(chunk: Chunk) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices") or ())


async def _while_away(ask: Callable[[], Awaitable[Result]]) -> Result:
    started, attempt = time.monotonic(), 0
    while True:
        try:
            return await ask()
        except ServerAway:
            if time.monotonic() - started > _AWAY_S:
                raise
        await asyncio.sleep(_pause_s(attempt))
        attempt += 1


def _pause_s(attempt: int) -> float:
    return min(_PAUSE_S * 2.0 ** min(attempt, 10), _LONGEST_PAUSE_S)
