"""Headers of every response: the request id, and restrictions for browsers."""

import re
from secrets import token_hex

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.auth.scopes import DOCUMENTATION_FILES, route_path

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_FOR_BROWSERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_NOT_KEPT = {"cache-control": "no-store"}


class ResponseHeaders:
    """ASGI middleware that adds missing headers to responses. A well-formed `x-request-id` from the client is kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {"x-request-id": _request_id(scope), **_FOR_BROWSERS}
        if not route_path(scope).startswith(DOCUMENTATION_FILES):
            headers |= _NOT_KEPT
        scope.setdefault("state", {})["response_headers"] = headers

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = MutableHeaders(scope=message)
                for name, value in headers.items():
                    present.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def _request_id(scope: Scope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return header.decode() if _SANE_ID.fullmatch(header) else token_hex(16)
