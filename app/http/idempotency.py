"""Idempotency-Key: repeating a POST with the same key returns the response to the first one.

Before a request is handled, a row claims its key with a lease, which is renewed while the request is being handled. The
time of the claim is the fencing token: if the process dies, another request can take the claim over once the lease has
expired, and the first one can no longer complete it. Only successful responses are kept, for 24 hours. After an error
the key is free again, because nothing was created.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from pydantic import BaseModel
from sqlalchemy import and_, delete, func, or_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.auth.scopes import SESSIONS, model_path, route_path
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import IdempotencyKey
from learnloop_service.app.errors import DATABASE_DOWN, Conflict, InvalidRequest, ServiceError, StillRunning, problem_of
from learnloop_service.environment.first_line import first_line

KEPT = timedelta(hours=24)
_LEASE = timedelta(seconds=60)
"""A request whose lease was not renewed for this long counts as lost with its process."""
_RENEW_EVERY_S = 15.0
_PURGE_EVERY_S = 600.0
_SECRET_REPLIES = ("/keys", "/webhooks", "/session")
"""Prefixes of paths whose responses can contain a secret, which must not be stored in the database."""
_WITHOUT_SECRETS = ("/outcome",)
"""Suffixes of such paths whose responses contain no secret."""
_VISIBLE = re.compile(rb"[\x21-\x7e]{1,255}")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Claim:
    """The right to answer the first request with a key."""

    project: str
    key: str
    since: datetime
    keep_body: bool
    completed: bool = False

    def owns_row(self) -> Any:
        """Return the SQL condition that the row of the key still belongs to this claim."""
        row = IdempotencyKey
        return and_(row.project == self.project, row.key == self.key, row.created_at == self.since)


_claim: ContextVar[Claim | None] = ContextVar("idempotency_claim", default=None)


async def complete(tx: AsyncSession, *, status: int, reply: BaseModel, has_secret: bool = False) -> None:
    """Save the response to the current request in the transaction that creates what it reports.

    If the response contains a secret, only the status is saved. Without an Idempotency-Key nothing happens. Raises
    Conflict if another request has taken over the key.
    """
    if (claim := _claim.get()) is not None:
        claim.keep_body = claim.keep_body and not has_secret
        await _complete(tx, claim, status, reply.model_dump_json())


async def _complete(tx: AsyncSession, claim: Claim, status: int, body: str) -> None:
    completion = (
        update(IdempotencyKey).where(claim.owns_row()).values(status=status, body=body if claim.keep_body else None)
    )
    if (await tx.execute(completion.returning(IdempotencyKey.key))).scalar_one_or_none() is None:
        raise Conflict(
            f"The request with Idempotency-Key {claim.key!r} took too long, and a repetition has replaced it."
        )
    claim.completed = True


_DOCUMENTS = (b"application/json", b"application/problem+json")


@dataclass(slots=True)
class _Reply:
    """A response that is held back until it is saved."""

    start: Message = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    passes: bool = False
    """Whether this is not a JSON document but a stream, which is passed through and not saved."""

    async def take(self, send: Send, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            self.passes = dict(message["headers"]).get(b"content-type") not in _DOCUMENTS
        if self.passes:
            await send(message)
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    @property
    def to_keep(self) -> bool:
        return not self.passes and 200 <= self.start.get("status", 500) < 300


class Idempotency:
    """ASGI middleware for POSTs with an Idempotency-Key. It must run after the caller and the whole body are known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = [value for name, value in scope.get("headers", ()) if name == b"idempotency-key"]
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if not is_post or not keys or "caller" not in scope["state"] or _is_session_call(scope):
            await self._app(scope, receive, send)
            return
        database: Database = scope["app"].state.service.database
        try:
            key = _valid_key(keys)
            message = await receive()
            request = await asyncio.to_thread(_request_hash, scope, message.get("body", b""))
            claim = await _claim_or_reply(database, scope, key, request)
        except (ServiceError, *DATABASE_DOWN) as error:
            await problem_of(error, scope["path"])(scope, receive, send)
            return
        if isinstance(claim, Response):
            await claim(scope, receive, send)
            return
        await self._answer(database, claim, scope, _replay_first(message, receive), send)

    async def _answer(self, database: Database, claim: Claim, scope: Scope, receive: Receive, send: Send) -> None:
        reply, reset = _Reply(), _claim.set(claim)
        try:
            async with every(_RENEW_EVERY_S, partial(_renew, database, claim), "renew the lease of an Idempotency-Key"):
                await self._app(scope, receive, partial(reply.take, send))
        finally:
            _claim.reset(reset)
            await _save_or_free(database, claim, reply)
        if not reply.passes:
            await send(reply.start)
            await send({"type": "http.response.body", "body": bytes(reply.body)})


def _is_session_call(scope: Scope) -> bool:
    """Return whether this is a call of a session's model. The session itself records and repeats those."""
    path = route_path(scope)
    return model_path(path) is not None and (path.startswith(SESSIONS) or scope["state"]["caller"].agent is not None)


def _valid_key(keys: list[bytes]) -> str:
    if len(keys) > 1 or not _VISIBLE.fullmatch(keys[0]):
        raise InvalidRequest(
            ("header", "Idempotency-Key"), "Send one Idempotency-Key of 1 to 255 visible ASCII characters."
        )
    return keys[0].decode()


def _has_secret(path: str) -> bool:
    return path.startswith(_SECRET_REPLIES) and not path.endswith(_WITHOUT_SECRETS)


def _request_hash(scope: Scope, body: bytes) -> str:
    head = f"{scope['method']} {scope['path']}?{scope['query_string'].decode('latin-1')}\n"
    return hashlib.sha256(head.encode() + body).hexdigest()


async def _claim_or_reply(database: Database, scope: Scope, key: str, request: str) -> Claim | Response:
    """Return the claim to the key, or the response to the first request with it. Raises Conflict or StillRunning."""
    project = scope["state"]["caller"].namespace
    async with database.begin() as tx:
        since = (await tx.execute(_claiming(project, key, request))).scalar_one_or_none()
        if since is not None:
            return Claim(project, key, since, keep_body=not _has_secret(route_path(scope)))
        first = await tx.get(IdempotencyKey, (project, key))
    if first is not None and first.request_sha256 != request:
        raise Conflict(f"Idempotency-Key {key!r} was already used for a different request.")
    if first is None or first.status is None:
        raise StillRunning(f"The first request with Idempotency-Key {key!r} is still being handled.")
    if first.body is None:
        raise Conflict(
            f"Idempotency-Key {key!r} was already used; that response contained a secret, which is shown only once."
        )
    headers = {"Idempotency-Replayed": "true"}
    return Response(first.body, first.status, headers, media_type="application/json")


def _claiming(project: str, key: str, request: str) -> Any:
    """Return a statement that inserts the key's row or takes over an expired one, and then returns the row's time."""
    row, now = IdempotencyKey, func.clock_timestamp()
    claim = {"request_sha256": request, "created_at": now, "lease_until": now + _LEASE}
    new = insert(row).values(project=project, key=key, **claim)
    lapsed = func.coalesce(row.lease_until, row.created_at + _LEASE) < now
    lost = and_(row.status.is_(None), row.request_sha256 == request, lapsed)
    return new.on_conflict_do_update(
        index_elements=[row.project, row.key],
        set_={**claim, "status": None, "body": None},
        where=or_(row.created_at < now - KEPT, lost),
    ).returning(row.created_at)


async def _renew(database: Database, claim: Claim) -> None:
    renewed = update(IdempotencyKey).where(claim.owns_row(), IdempotencyKey.status.is_(None))
    async with database.begin() as tx:
        await tx.execute(renewed.values(lease_until=func.clock_timestamp() + _LEASE))


async def _save_or_free(database: Database, claim: Claim, reply: _Reply) -> None:
    """Save the response or free the key. Errors are logged, because the client should still get its response."""
    if claim.completed and reply.to_keep:
        return
    try:
        async with database.begin() as tx:
            if reply.to_keep:
                await _complete(tx, claim, reply.start["status"], reply.body.decode())
            else:
                await tx.execute(delete(IdempotencyKey).where(claim.owns_row(), IdempotencyKey.status.is_(None)))
    except (Conflict, *DATABASE_DOWN) as error:
        log.warning("response not saved for repetition", error=first_line(error))


def _replay_first(first: Message, receive: Receive) -> Receive:
    """Return a receive channel that starts with a message that was already read."""
    pending = [first]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


@asynccontextmanager
async def purging(database: Database) -> AsyncIterator[None]:
    """Delete expired responses periodically while this is open."""
    async with every(_PURGE_EVERY_S, partial(purge, database), "purge idempotency keys"):
        yield


async def purge(database: Database) -> None:
    """Delete everything older than 24 hours."""
    async with database.begin() as tx:
        await tx.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < func.clock_timestamp() - KEPT))
