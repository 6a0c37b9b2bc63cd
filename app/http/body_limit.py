"""Bounds on request bodies: the bytes and values of each, and the bytes of all that are there at the same time."""

import asyncio
import ctypes
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.aio.fair_turns import FairTurns
from app.auth.scopes import is_public, route_path
from app.errors import ServiceError, TooManyRequests, Unavailable, problem_of
from app.http.json_values import has_more_values

MAX_VALUES = 20_000
"""In an ordinary body: some megabytes as Python objects."""
MAX_VALUES_OF_BIG = 1_000_000
"""The largest graph has half as many."""
_ORDINARY_BODIES = 64
"""So many of the largest size may be there at the same time; big ones beside them."""
_BIG_BODIES = 4
_SHARE = 2
"""A project has half of that at most."""
_WAITING = 8
"""Big bodies of a project that wait for their turn."""
_RETRY_AFTER_S = 5
_LONG = 100_000
"""Bytes whose values are counted on a thread."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyTooLarge(ServiceError):
    """The body has too many bytes or values."""

    status = 413
    title = "Body too large"

    def headers(self) -> Mapping[str, str]:
        return {"Connection": "close"}


@dataclass(slots=True)
class _Budget:
    """Bytes of bodies that are there at the same time."""

    most: int
    held: int = 0
    held_by: Counter[str] = field(default_factory=Counter)

    def take(self, owner: str, count: int) -> None:
        """Raises TooManyRequests or Unavailable."""
        if self.held_by[owner] + count > self.most // _SHARE:
            raise TooManyRequests("Too many large requests of this project are being handled.", _RETRY_AFTER_S)
        if self.held + count > self.most:
            raise Unavailable("Too many large requests are being handled.", _RETRY_AFTER_S)
        self.held += count
        self.held_by[owner] += count

    def give_back(self, owner: str, count: int) -> None:
        """What was taken."""
        self.held -= count
        self.held_by[owner] -= count
        self.held_by += Counter()  # forgets those that hold nothing


@dataclass(slots=True)
class _Body:
    """A body that is received; `reserved` bytes of the budget are its own."""

    path: str
    limit: int
    owner: str
    budget: _Budget
    needed: bool = True
    reserved: int = 0
    content: bytearray = field(default_factory=bytearray)

    def reserve(self, size: int) -> None:
        """Raises BodyTooLarge, TooManyRequests or Unavailable."""
        if size > self.limit:
            raise BodyTooLarge(f"the body of a request to {self.path} has at most {self.limit} bytes")
        if size > self.reserved:
            self.budget.take(self.owner, size - self.reserved)
            self.reserved = size

    async def receive(self, receive: Receive) -> bool:
        """All of it; False if the client disconnects. Raises what `reserve` raises."""
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
        """The whole body, which from then on only the caller has."""
        content, self.content = bytes(self.content), bytearray()
        return content

    def release(self) -> None:
        """It is not needed any more."""
        self.budget.give_back(self.owner, self.reserved)


class BodyLimit:
    """ASGI middleware: 413 beyond `max_bytes`, or beyond what `big` says of a path; 429 and 503 if there are too many.

    Of requests that need no body none is waited for. Big bodies are handled one after the other, the projects in
    rotation: as Python objects one takes ten times its bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        big: Mapping[str, int],
        forwarded: str | None = None,
        raw: Collection[str] = (),
    ) -> None:
        """Below the path `forwarded`, bodies go on to another server as they are, with any number of values. Those to a
        path of `raw` are no JSON."""
        self._app = app
        self._raw = raw
        self._forwarded = forwarded
        self._max_bytes = max_bytes
        self._big = big
        self._ordinary_budget = _Budget(_ORDINARY_BODIES * max_bytes)
        self._big_budget = _Budget(_BIG_BODIES * max(big.values(), default=0))
        self._turns = FairTurns(1, _WAITING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = self._expected(scope)
        try:
            body.reserve(_announced(scope))
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
        is_big = limit > self._max_bytes and _announced(scope, limit) > self._max_bytes
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
            await asyncio.to_thread(_give_back_memory)


def _announced(scope: Scope, otherwise: int = 0) -> int:
    """The length of the body by its header."""
    given = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(given) if given.isdigit() else otherwise


async def _has_more_values(content: bytes, most: int) -> bool:
    if len(content) < _LONG:
        return has_more_values(content, most)
    return await asyncio.to_thread(has_more_values, content, most)


def _too_many_values(content: bytes, most: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body of {len(content)} bytes has at most {most} values here")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the whole body once and then what really comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _give_back_memory() -> None:
    """What was freed goes to the operating system; glibc keeps it otherwise."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
