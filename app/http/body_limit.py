"""Limits on request bodies: bytes and values per body, and total bytes of the bodies in memory."""

import asyncio
import ctypes
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.aio.fair_turns import FairTurns
from learnloop_service.app.auth.scopes import is_public, route_path
from learnloop_service.app.errors import ServiceError, TooManyRequests, Unavailable, problem_of
from learnloop_service.app.http.json_values import has_more_values

MAX_VALUES = 20_000
"""Maximum number of values in an ordinary body. As Python objects they take a few megabytes."""
MAX_VALUES_OF_BIG = 1_000_000
"""Maximum number of values in a big body. The largest graph has half as many."""
_ORDINARY_BODIES = 64
"""Number of ordinary bodies of maximum size that can be in memory at a time. Big bodies have a separate budget."""
_BIG_BODIES = 4
_PROJECT_FRACTION = 2
"""Divisor that yields a project's maximum share of a budget: one half."""
_MAX_WAITING = 8
"""Maximum number of a project's big bodies that wait for their turn."""
_RETRY_AFTER_S = 5
_THREAD_BYTES = 100_000
"""Bodies of at least this many bytes have their values counted on a thread."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyTooLarge(ServiceError):
    """The body has too many bytes or values."""

    status = 413
    title = "Body too large"

    def headers(self) -> Mapping[str, str]:
        return {"Connection": "close"}


@dataclass(slots=True)
class _Budget:
    """A limit on the total bytes of bodies in memory."""

    most: int
    total: int = 0
    by_owner: Counter[str] = field(default_factory=Counter)

    def take(self, owner: str, count: int) -> None:
        """Reserve bytes for an owner. Raises TooManyRequests or Unavailable."""
        if self.by_owner[owner] + count > self.most // _PROJECT_FRACTION:
            raise TooManyRequests("Too many large requests of this project are being handled.", _RETRY_AFTER_S)
        if self.total + count > self.most:
            raise Unavailable("Too many large requests are being handled.", _RETRY_AFTER_S)
        self.total += count
        self.by_owner[owner] += count

    def give_back(self, owner: str, count: int) -> None:
        """Return bytes that were reserved for an owner."""
        self.total -= count
        self.by_owner[owner] -= count
        self.by_owner += Counter()  # drops owners without bytes


@dataclass(slots=True)
class _Body:
    """A body that is being received, with `reserved` bytes of the budget."""

    path: str
    limit: int
    owner: str
    budget: _Budget
    needed: bool = True
    reserved: int = 0
    content: bytearray = field(default_factory=bytearray)

    def reserve(self, size: int) -> None:
        """Reserve bytes of the budget up to `size`. Raises BodyTooLarge, TooManyRequests or Unavailable."""
        if size > self.limit:
            raise BodyTooLarge(f"the body of a request to {self.path} has at most {self.limit} bytes")
        if size > self.reserved:
            self.budget.take(self.owner, size - self.reserved)
            self.reserved = size

    async def receive(self, receive: Receive) -> bool:
        """Receive the whole body, or return False if the client disconnects. Raises the errors of `reserve`."""
        complete = False
        while not complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            self.reserve(len(self.content) + len(piece))
            self.content += piece
            complete = not message.get("more_body", False)
        return True

    def take(self) -> bytes:
        """Return the whole body and drop the reference to it."""
        content, self.content = bytes(self.content), bytearray()
        return content

    def release(self) -> None:
        """Return the reserved bytes to the budget."""
        self.budget.give_back(self.owner, self.reserved)


class BodyLimit:
    """ASGI middleware that limits request bodies.

    It answers 413 above `max_bytes` or the path's limit in `big`, and 429 or 503 if there are too many bodies. It does
    not wait for the body of a request that needs none. Big bodies are handled one at a time, with projects in rotation,
    because a body takes ten times its size as Python objects.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        big: Mapping[str, int],
        forwarded: str | None = None,
        raw: Collection[str] = (),
    ) -> None:
        """Bodies under the path `forwarded` are passed on to another server unchanged, with any number of values.
        Bodies for the paths in `raw` are not JSON."""
        self._app = app
        self._raw = raw
        self._forwarded = forwarded
        self._max_bytes = max_bytes
        self._big = big
        self._ordinary_budget = _Budget(_ORDINARY_BODIES * max_bytes)
        self._big_budget = _Budget(_BIG_BODIES * max(big.values(), default=0))
        self._turns = FairTurns(1, _MAX_WAITING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = self._expected(scope)
        try:
            body.reserve(_content_length(scope))
            if not body.needed:
                await self._app(scope, _replay(b"", receive), send)
            elif await body.receive(receive):
                await self._handle(body, scope, receive, send)
        except ServiceError as error:
            await problem_of(error, scope["path"])(scope, receive, send)
        finally:
            body.release()

    def _expected(self, scope: Scope) -> _Body:
        path = route_path(scope)
        if scope["method"] in _WITHOUT_BODY or is_public(path):
            return _Body(path, self._max_bytes, "", _Budget(2 * self._max_bytes), needed=False)
        owner, limit = scope["state"]["caller"].namespace, self._big.get(path, self._max_bytes)
        is_big = limit > self._max_bytes and _content_length(scope, limit) > self._max_bytes
        return _Body(path, limit, owner, self._big_budget if is_big else self._ordinary_budget)

    async def _handle(self, body: _Body, scope: Scope, receive: Receive, send: Send) -> None:
        content = body.take()
        if self._forwarded is not None and body.path.startswith(self._forwarded):
            await self._app(scope, _replay(content, receive), send)
            return
        is_raw = body.path in self._raw
        if len(content) <= self._max_bytes and (is_raw or not await _has_more_values(content, MAX_VALUES)):
            await self._app(scope, _replay(content, receive), send)
            return
        if body.path not in self._big:
            raise _too_many_values(content, MAX_VALUES)
        async with self._turns.turn(body.owner):
            if not is_raw and await _has_more_values(content, MAX_VALUES_OF_BIG):
                raise _too_many_values(content, MAX_VALUES_OF_BIG)
            replayed = _replay(content, receive)
            del content
            await self._app(scope, replayed, send)
            await asyncio.to_thread(_trim_heap)


def _content_length(scope: Scope, otherwise: int = 0) -> int:
    """Return the length of the body according to its header, or `otherwise` without one."""
    header = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(header) if header.isdigit() else otherwise


async def _has_more_values(content: bytes, most: int) -> bool:
    if len(content) < _THREAD_BYTES:
        return has_more_values(content, most)
    return await asyncio.to_thread(has_more_values, content, most)


def _too_many_values(content: bytes, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body of {len(content)} bytes has at most {most} values here")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive channel that yields the whole body once and then the messages of `receive`."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _trim_heap() -> None:
    """Return freed memory to the operating system. Otherwise glibc keeps it."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
