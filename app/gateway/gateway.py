"""Gateway to the models of agent sessions: records each request, and samples its answer or finds the recorded one.

An answer is durable before its last part is sent. Chunks of a stream are passed through as they arrive, but those that
end the reply are held back until the answer is recorded. If the model's server is briefly unavailable, the request is
repeated. A call has its seed and the token ids of earlier replies, so the same reply is sampled again.

If a request is the next turn of a conversation whose last turn this process handled, the model is asked while the
database claims the call. The call is then almost certainly new, and its seed is known. If it turns out to be a
different call, the early request is cancelled.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from learnloop_service.app.agent_sessions.calls import BegunCall, SessionCaller, SessionCalls
from learnloop_service.app.agent_sessions.canonical import CanonicalRequest, canonical, seeds_of_call
from learnloop_service.app.agent_sessions.replay import Repetition
from learnloop_service.app.agent_sessions.store import AgentSessions
from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.aio.periodic import every
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Release, Run
from learnloop_service.app.domain.release_state import SPLITTING, Arm
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import NotFound
from learnloop_service.app.gateway import responses
from learnloop_service.app.gateway.chunks import AnotherReply, Assembly, Chunk, chunks_of
from learnloop_service.app.gateway.known_replies import KnownReplies
from learnloop_service.app.gateway.prompts import Delivery, ServedPrompts, prompt_header
from learnloop_service.app.gateway.upstream import ServerAway, Upstream
from learnloop_service.app.model_registry.resolver import ModelResolver, ResolvedModel, base_models
from learnloop_service.app.releases.exposures import AnswerObservation, failure_recorded, record
from learnloop_service.app.releases.split import Exposure, Split
from learnloop_service.app.resources import Resources
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.protocol.asks_back import asks_back
from learnloop_service.training.protocol.malformed_calls import is_malformed
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.protocol.responses.items import Item
from learnloop_service.training.protocol.responses.parameters import hint_warnings
from learnloop_service.training.rollout.model_calls import Sampling

Result = TypeVar("Result")
_MAX_RETRY_S = 60.0
"""Longest time to retry while the model's server is unreachable, in seconds."""
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_MOST_KNOWN = 10_000
_ENDPOINT_CACHE_S = 10.0
"""How long to reuse a known endpoint of another backend, in seconds. A server that was unreachable may have moved."""
_EXPIRE_EVERY_S = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class KnownSession:
    """The constant facts about a session, and the last turn of its conversation."""

    id: str
    model: ResolvedModel
    sampling: Sampling | None
    seed: int
    warnings: set[str]
    """Warnings that the session is known to have."""
    replacing: Prompt | None
    """The prompt that replaces texts of its requests; None without one, or if the agent brings it itself."""
    turn: int | None = None
    """Last turn that this process handled; None if it has handled none."""
    exposure: Exposure | None = None
    """What the session meets of a live release, until its first answer is recorded there."""
    items: dict[str, Item] = field(default_factory=dict)
    """Items of its replies in the Responses API by id, as far as clients have referred to any."""
    itemized: int = 0
    """Number of the first calls whose replies are all in `items`."""
    prompt: PromptReference | None = None
    """What its requests are to have: its agent brings it, or it replaces texts."""
    name: str | None = None
    """The name that it was opened with, as PROJECT/NAME; None for other names."""


@dataclass(frozen=True, slots=True)
class BegunStream:
    """A stream whose first chunk has arrived."""

    first: Chunk | None
    """None if the stream ended without a chunk."""
    rest: AsyncGenerator[Chunk]

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all chunks, including the first one."""
        async with aclosing(self.rest):
            if self.first is not None:
                yield self.first
                async for chunk in self.rest:
                    yield chunk


class SessionGateway:
    """Handles the requests of all sessions in one process."""

    def __init__(self, database: Database, calls: SessionCalls, models: ModelResolver, upstream: Upstream) -> None:
        self.database = database
        self.calls = calls
        self._models = models
        self.upstream = upstream
        self.prompts = ServedPrompts(database)
        self._replies = KnownReplies(database)
        self._known: OrderedDict[str, KnownSession] = OrderedDict()
        self._endpoints: dict[tuple[str, str, int | None], tuple[Endpoint, float]] = {}
        """Endpoints of checkpoints on other backends, and when each expires (monotonic clock)."""

    async def begin(
        self,
        asker: SessionCaller,
        body: dict[str, Json],
        protocol: str,
        repetition: Repetition,
        *,
        is_streamed: bool,
        warnings: Sequence[str] = (),
    ) -> "SessionExchange":
        """Begin an exchange, which the caller must finish. The session keeps each of the `warnings` once, and those
        about hints in the body. Raises BadRequestBody, NotFound and the errors of SessionCalls.begin."""
        session = await self._session(asker.session_id)
        request = canonical(body, session.sampling, session.replacing)
        delivery = await self.prompts.delivery(session.prompt, body, session.name, request.missing)
        missing = [] if delivery in (None, "applied") else [f"A request came without the prompt {session.prompt}."]
        await self._warn(session, [*warnings, *missing, *_ignored_hints(session, body, request)])
        seeds, early = seeds_of_call(session.seed, request, 0), None
        if session.turn is not None and seeds.turn == session.turn + 1:
            session.turn = seeds.turn  # the same request again is not the next turn
            ask = self.begun_stream if is_streamed else self.sampled
            early = asyncio.create_task(ask(session, request, seeds.in_turn), name="ask early")
        try:
            call = await self.calls.begin(asker, request, protocol, repetition, seeds)
            exchange = SessionExchange(self, session, request, call, early, delivery)
            if call.recorded is None and call.seed == seeds.in_turn:
                session.turn = seeds.turn
            else:
                await exchange.give_up_early()
        except BaseException:
            await shielded(_cancel(early))
            raise
        return exchange

    async def _session(self, id: str) -> KnownSession:
        if (cached := self._known.get(id)) is not None:
            return cached
        async with self.database() as tx:
            row = await tx.get(AgentSession, id)
            run = None if row is None or row.model_run_id is None else await tx.get(Run, row.model_run_id)
            release = None if row is None or row.release_id is None else await tx.get(Release, row.release_id)
        if row is None:
            raise NotFound(f"There is no session {id!r}.")
        if run is None and not is_on_engine(row.backend):
            raise NotFound(f"The run that trained {row.model} was deleted; only with it the model can be found.")
        session = KnownSession(
            id,
            ResolvedModel(row.model, row.step, run),
            None if row.sampling is None else Sampling(**row.sampling),
            row.seed,
            set(row.warnings),
            await self.prompts.replacing(row),
            exposure=None if release is None else _exposure(row, release),
            prompt=row.prompt,
            name=_promoted_name(row),
        )
        self._known[id] = session
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return session

    async def _warn(self, session: KnownSession, warnings: Sequence[str]) -> None:
        new = [warning for warning in dict.fromkeys(warnings) if warning not in session.warnings]
        if new:
            await AgentSessions(self.database).warn(session.id, new)
            session.warnings.update(new)

    async def count_tokens(self, asker: SessionCaller, body: dict[str, Json]) -> int:
        """Return the number of tokens in the request's prompt. Nothing is recorded. Raises BadRequestBody, SessionOver,
        SessionRestarted and the errors of Upstream."""
        session = await self._session(asker.session_id)
        await self.calls.require_open(asker)
        request = canonical(body, session.sampling, session.replacing)

        async def ask() -> int:
            return await self.upstream.count_tokens(*await self._request_body(session, request))

        return await _retry_while_unavailable(ask)

    async def items(self, session_id: str, ids: Collection[str]) -> Mapping[str, Item]:
        """Return the items of the session's replies by id, with all of these that exist. Raises NotFound."""
        if not ids:
            return {}
        session = await self._session(session_id)
        if not session.items.keys() >= set(ids):
            for call in await self.calls.listed(session_id, after=session.itemized):
                if call.completion is not None:
                    session.items |= responses.items_of(call.completion) if call.protocol == responses.NAME else {}
                    session.itemized += call.number == session.itemized + 1
        return session.items

    async def endpoint(self, session: KnownSession) -> Endpoint:
        """Return where the session's checkpoint is sampled now. Endpoints of backends other than the engine are cached
        for a short time. Raises Unavailable."""
        model, now = session.model, time.monotonic()
        if is_on_engine(model.backend):
            return await self._models.endpoint(model)
        which = (model.backend, model.name, model.step)
        endpoint, until = self._endpoints.get(which, (None, 0.0))
        if endpoint is None or until < now:
            endpoint = await self._models.endpoint(model)
            self._endpoints[which] = (endpoint, now + _ENDPOINT_CACHE_S)
            self._endpoints = {checkpoint: cached for checkpoint, cached in self._endpoints.items() if cached[1] >= now}
        return endpoint

    async def sampled(self, session: KnownSession, request: CanonicalRequest, seed: int) -> dict[str, Json]:
        """Sample a completion. Raises the errors of Upstream."""

        async def ask() -> dict[str, Json]:
            return await self.upstream.complete(*await self._request(session, request, seed))

        return await _retry_while_unavailable(ask)

    async def begun_stream(self, session: KnownSession, request: CanonicalRequest, seed: int) -> BegunStream:
        """Start a streamed completion, and restart it if the server fails before the first chunk. Raises the errors of
        Upstream."""

        async def ask() -> BegunStream:
            endpoint, body = await self._request(session, request, seed)
            stream = self.upstream.chunks(endpoint, {**body, "stream_options": {"include_usage": True}})
            return BegunStream(await anext(stream, None), stream)

        return await _retry_while_unavailable(ask)

    async def _request(
        self, session: KnownSession, request: CanonicalRequest, seed: int
    ) -> tuple[Endpoint, dict[str, Json]]:
        endpoint, body = await self._request_body(session, request)
        more: dict[str, Json] = {"return_token_ids": True} if endpoint.tells_token_ids else {}
        return endpoint, {**body, "seed": seed, "logprobs": True, **more}

    async def _request_body(self, session: KnownSession, request: CanonicalRequest) -> tuple[Endpoint, dict[str, Json]]:
        """Return the endpoint and the body of the request. For the engine, earlier replies include their token ids."""
        endpoint = await self.endpoint(session)
        on_engine = is_on_engine(session.model.backend)
        messages = await self._replies.messages(session.id, request) if on_engine else list(request.messages)
        tools: dict[str, Json] = {"tools": list(request.tools)} if request.tools else {}
        return endpoint, {**request.parameters, "model": endpoint.model, "messages": messages, **tools}

    async def record(self, exchange: "SessionExchange", completion: dict[str, Json]) -> dict[str, Json]:
        """Record the answer durably and return the one that counts. Raises SessionOver."""
        recorded = await self.calls.answer(exchange.call, completion)
        if (exposure := exchange.session.exposure) is not None:
            usage = recorded.get("usage") or {}
            observed = AnswerObservation(
                malformed=is_malformed(recorded),
                completion_tokens=usage.get("completion_tokens"),
                asks_back=asks_back(recorded),
            )
            await record(self.database, exposure, observed)
            exchange.session.exposure = None
        request = exchange.request
        which = request.digest, exchange.call.occurrence
        self._replies.add(exchange.session.id, which, request.conversations[-1], recorded)
        return recorded

    async def finish(self, exchange: "SessionExchange", *, delivered: bool) -> None:
        """Finish the exchange. `delivered` says whether the whole reply was sent."""
        await self.calls.finish(exchange.call, delivered=delivered)


@asynccontextmanager
async def open_session_gateway(service: Resources) -> AsyncIterator[SessionGateway]:
    """Open the gateway of a running service."""
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
    """Early request for the model's reply, made before the call was claimed. It results in a completion or a
    BegunStream."""
    delivery: Delivery | None = None
    """What became of the session's prompt in the request; None without one."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the reply."""
        prompt = self.session.prompt
        delivered = {} if prompt is None or self.delivery is None else prompt_header(prompt, self.delivery)
        return delivered if self.call.recorded is None else {**delivered, "Idempotency-Replayed": "true"}

    async def completion(self) -> dict[str, Json]:
        """Return the answer once it is durable."""
        if self.call.recorded is not None:
            return self.call.recorded
        async with self._failure_recorded():
            return await self.gateway.record(self, await self._reply(self.gateway.sampled))

    def _failure_recorded(self) -> AbstractAsyncContextManager[None]:
        return failure_recorded(self.gateway.database, self.session.exposure)

    async def _reply(self, ask: Callable[[KnownSession, CanonicalRequest, int], Awaitable[Result]]) -> Result:
        """Return the model's reply, from the early request if there is one."""
        if self.early is None:
            return await ask(self.session, self.request, self.call.seed)
        reply: Result = await self.early
        self.early = None
        return reply

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the answer as chunks. Those that end a choice are held back until the answer is durable.

        Raises the errors of `completion`, and AnotherReply.
        """
        if self.call.recorded is not None:
            for chunk in chunks_of(self.call.recorded):
                yield chunk
            return
        async with self._failure_recorded(), aclosing(self._sampled_chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _sampled_chunks(self) -> AsyncGenerator[Chunk]:
        assembly, unsent = Assembly(), list[Chunk]()
        try:
            async with aclosing((await self._reply(self.gateway.begun_stream)).chunks()) as stream:
                async for chunk in stream:
                    assembly.add(chunk)
                    if unsent or _ends(chunk):
                        unsent.append(chunk)
                    else:
                        yield chunk
            if not assembly.is_whole:
                raise ServerAway("The server of the model ended the stream too soon.")
            sampled = assembly.completion()
        except ServerAway as error:
            log.info("a stream broke off and is sampled again", session_id=self.session.id, error=str(error))
            sampled = assembly.with_header(await self.gateway.sampled(self.session, self.request, self.call.seed))
            unsent = list(assembly.rest_of(sampled))
        if await self.gateway.record(self, sampled) is not sampled:
            raise AnotherReply("Another process has answered this request meanwhile; repeat it.")
        for chunk in unsent:
            yield chunk

    async def finish(self, *, delivered: bool) -> None:
        """Finish the exchange. `delivered` says whether the whole reply was sent."""
        await self.give_up_early()
        await self.gateway.finish(self, delivered=delivered)

    async def give_up_early(self) -> None:
        """Cancel the early request, if there is one."""
        early, self.early = self.early, None
        await _cancel(early)


async def _cancel(early: "asyncio.Task[Any] | None") -> None:
    if early is None:
        return
    early.cancel()
    await asyncio.wait({early})
    if not early.cancelled() and early.exception() is None and isinstance(begun := early.result(), BegunStream):
        await begun.rest.aclose()


def _exposure(session: AgentSession, release: Release) -> Exposure | None:
    """Return what the session meets of its release, while that is live."""
    if release.state not in SPLITTING or session.arm is None:
        return None
    unit = session.user_hash if release.unit == "user" else session.id
    arm = Arm(session.arm)
    split = Split.of(release) if session.probability is None else Split.of(release).when_met(arm, session.probability)
    # The exposure itself was recorded when the session was opened.
    return Exposure(split, unit, arm, is_enrolled=False)


def _promoted_name(session: AgentSession) -> str | None:
    asked = session.asked_model
    try:
        name = ModelName.parse(asked if "/" in asked else f"{session.project}/{asked}")
    except ValueError:
        return None
    return str(name) if name.step is None else None


def _ignored_hints(session: KnownSession, body: dict[str, Json], request: CanonicalRequest) -> list[str]:
    """Return warnings about the body's hints, except those that another backend's server is given."""
    passed_on = () if is_on_engine(session.model.backend) else request.parameters
    return hint_warnings({name: value for name, value in body.items() if name not in passed_on})


def _ends(chunk: Chunk) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices") or ())


async def _retry_while_unavailable(ask: Callable[[], Awaitable[Result]]) -> Result:
    started, attempt = time.monotonic(), 0
    while True:
        try:
            return await ask()
        except ServerAway:
            if time.monotonic() - started > _MAX_RETRY_S:
                raise
        await asyncio.sleep(_pause_s(attempt))
        attempt += 1


def _pause_s(attempt: int) -> float:
    return min(_PAUSE_S * 2.0 ** min(attempt, 10), _LONGEST_PAUSE_S)
