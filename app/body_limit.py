"""Refuse request bodies that are too large, whether or not they announce their length."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import problem


class BodyLimit:
    """ASGI middleware: 413 beyond `max_bytes`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        body, complete = b"", False
        while not complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            complete = not message.get("more_body", False)
            if len(body) > self._max_bytes:
                await self._refuse(scope, receive, send)
                return
        await self._app(scope, _replay(body, receive), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"a request body has at most {self._max_bytes} bytes"
        await problem(413, "Body too large", detail, headers={"Connection": "close"})(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the whole body once and then what really comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
