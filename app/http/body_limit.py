"""Refuse request bodies that are too large, whether or not they announce their length."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import problem


class BodyLimit:
    """ASGI middleware: 413 beyond `max_bytes`, or beyond what `for_paths` says of a path."""

    def __init__(self, app: ASGIApp, max_bytes: int, for_paths: Mapping[str, int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._for_paths = for_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._for_paths.get(scope["path"], self._max_bytes)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > limit:
            await _refuse(limit, scope, receive, send)
            return
        body, complete = bytearray(), False
        while not complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            complete = not message.get("more_body", False)
            if len(body) > limit:
                await _refuse(limit, scope, receive, send)
                return
        await self._app(scope, _replay(bytes(body), receive), send)


async def _refuse(limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    detail = f"the body of a request to {scope['path']} has at most {limit} bytes"
    await problem(413, "Body too large", detail, headers={"Connection": "close"})(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the whole body once and then what really comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
