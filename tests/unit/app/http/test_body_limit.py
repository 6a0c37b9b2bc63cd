"""How much of a request's body is accepted, and how many bodies there can be at the same time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.http.body_limit import MAX_VALUES, BodyLimit

_BIG = {"/graphs": 3_000}


class _App:
    """Reads its body, and answers when it may."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


class _Request:
    """A request of a project whose body comes piece by piece; None is the end."""

    def __init__(self, path: str, project: str, *, length: int | None = None, method: str = "POST") -> None:
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        state = {"caller": Caller("key:a", project, frozenset())}
        self.scope = {"type": "http", "method": method, "path": path, "headers": headers, "state": state}
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status: int | None = None
        self.task: asyncio.Task[None] | None = None

    def to(self, limit: BodyLimit, *pieces: bytes | None) -> "_Request":
        """Begin to send it."""
        for piece in pieces:
            self.pieces.put_nowait(piece)
        self.task = asyncio.create_task(limit(self.scope, self._receive, self._send))
        return self

    async def _receive(self) -> Any:
        piece = await self.pieces.get()
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


async def _settled(condition: Callable[[], object] = lambda: False) -> None:
    """Let everything run that can."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)


async def _status_of(request: _Request) -> int | None:
    assert request.task is not None
    await asyncio.wait_for(request.task, 30)
    return request.status


@pytest.mark.parametrize("announced", [True, False])
async def test_bodies_that_are_under_way_are_bounded_in_all_and_by_project(announced: bool) -> None:
    """64 of 1,000 bytes: a project has 32 of them; others find room until all are there."""
    app = _App()
    limit, length = BodyLimit(app, 1_000, _BIG), 1_000 if announced else None
    waiting = [_Request("/a", "one", length=length).to(limit, b"a" * 1_000) for _ in range(32)]
    await _settled()
    assert await _status_of(_Request("/a", "one", length=length).to(limit, b"a" * 1_000)) == 429
    waiting += [_Request("/a", "two", length=length).to(limit, b"a" * 1_000) for _ in range(32)]
    await _settled()
    assert await _status_of(_Request("/a", "three", length=length).to(limit, b"a" * 1_000)) == 503
    assert app.bodies == []
    app.go_on.set()
    for request in waiting:
        request.pieces.put_nowait(None)
        assert await _status_of(request) == 200
    assert await _status_of(_Request("/a", "one", length=length).to(limit, b"a" * 1_000, None)) == 200


async def test_big_bodies_leave_room_for_ordinary_ones_and_are_handled_in_turns() -> None:
    app = _App()
    limit = BodyLimit(app, 1_000, _BIG)
    big = [_Request("/graphs", project, length=3_000).to(limit, b"a" * 3_000, None) for project in ("one", "two") * 2]
    await _settled(lambda: app.bodies)
    assert await _status_of(_Request("/graphs", "three", length=3_000).to(limit)) == 503
    assert await _status_of(_Request("/graphs", "one", length=3_000).to(limit)) == 429
    ordinary = _Request("/graphs", "three", length=10).to(limit, b"a" * 10, None)
    await _settled(lambda: len(app.bodies) == 2)
    assert sorted(map(len, app.bodies)) == [10, 3_000]
    app.go_on.set()
    assert [await _status_of(request) for request in (ordinary, *big)] == [200] * 5


async def test_a_body_that_lied_about_its_length_is_counted() -> None:
    limit = BodyLimit(_App(), 1_000, {})
    assert await _status_of(_Request("/a", "one", length=1_001).to(limit)) == 413
    assert await _status_of(_Request("/a", "one").to(limit, b"a" * 600, b"a" * 600)) == 413


@pytest.mark.parametrize(("method", "path"), [("GET", "/runs"), ("HEAD", "/runs"), ("POST", "/health/live")])
async def test_what_needs_no_body_is_handled_without_it(method: str, path: str) -> None:
    app = _App()
    app.go_on.set()
    limit = BodyLimit(app, 1_000, {})
    assert await _status_of(_Request(path, "one", method=method, length=1_000).to(limit)) == 200
    assert app.bodies == [b""]
    assert await _status_of(_Request(path, "one", method=method, length=1_001).to(limit)) == 413


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_every_method_that_can_have_a_body_has_it(method: str) -> None:
    """ART's client names the checkpoints that it deletes in the body of a DELETE."""
    app = _App()
    app.go_on.set()
    assert await _status_of(_Request("/a", "one", method=method).to(BodyLimit(app, 1_000, {}), b"a", b"b", None)) == 200
    assert app.bodies == [b"ab"]


async def test_a_body_of_too_many_values_is_refused() -> None:
    app = _App()
    app.go_on.set()
    limit = BodyLimit(app, 1_000_000, {})
    most = b"[" + b"1," * (MAX_VALUES - 1) + b"1]"
    assert await _status_of(_Request("/a", "one").to(limit, most, None)) == 200
    assert await _status_of(_Request("/a", "one").to(limit, most.replace(b"1]", b"1,1]"), None)) == 413
    assert await _status_of(_Request("/a", "one").to(limit, most + b" " * 900_000, None)) == 200


async def test_what_is_forwarded_may_have_any_number_of_values() -> None:
    app = _App()
    app.go_on.set()
    limit = BodyLimit(app, 1_000_000, {"/forwarded/big": 2_000_000}, forwarded="/forwarded/")
    values = b"[" + b"1," * 400_000 + b"1]"
    assert await _status_of(_Request("/forwarded/a", "one").to(limit, values, None)) == 200
    assert await _status_of(_Request("/forwarded/big", "one").to(limit, values + b" " * 900_000, None)) == 200
    assert await _status_of(_Request("/a", "one").to(limit, values, None)) == 413
