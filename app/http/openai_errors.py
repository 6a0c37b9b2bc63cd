"""Errors under `/v1` and in sessions, in the format of OpenAI or Anthropic, which their clients understand."""

import json
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.auth.scopes import ANTHROPIC, model_path, route_path
from learnloop_service.app.errors import MEDIA_TYPE
from learnloop_service.app.http.anthropic_errors import anthropic_error
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.meant_path import tidy

_KINDS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
"""Types and codes by status, where they differ from the default."""

log = structlog.get_logger(__name__)


def openai_error(
    status: int, message: str, *, code: str | None = None, param: str | None = None, headers: Any = None
) -> JSONResponse:
    """Return an error in OpenAI's format."""
    kind, usual = _KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    error = {"message": message, "type": kind, "param": param, "code": code or usual}
    return JSONResponse({"error": error}, status, headers)


class ModelErrors:
    """ASGI middleware that translates problem documents and exceptions to the format of the path's protocol."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = model_path(tidy(route_path(scope))) if scope["type"] == "http" else None
        if path is None:
            await self._app(scope, receive, send)
            return
        reply = _Reply(send)
        try:
            await self._app(scope, receive, reply.take)
        except Exception as error:
            if reply.begun:
                raise
            log.error("unexpected error", path=scope["path"], method=scope["method"], exc_info=error)
            message = "An unexpected error occurred; see the log of the service."
            is_anthropic = path in ANTHROPIC
            unexpected = (
                anthropic_error(500, message) if is_anthropic else openai_error(500, message, code="internal_error")
            )
            await unexpected(scope, receive, send)
            return
        if reply.problem is not None:
            await _translated(path, reply.problem, bytes(reply.body))(scope, receive, send)


class _Reply:
    """Holds back a problem document and passes everything else through."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.problem: Message | None = None
        self.body = bytearray()

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start" and MutableHeaders(scope=message).get("content-type") == MEDIA_TYPE:
            self.problem = message
        elif self.problem is not None:
            self.body += message.get("body", b"")
        else:
            self.begun = True
            await self._send(message)


def _translated(path: str, start: Message, body: bytes) -> JSONResponse:
    problem: dict[str, Json] = json.loads(body)
    headers = {
        name: value
        for name, value in MutableHeaders(scope=start).items()
        if name not in ("content-type", "content-length")
    }
    if path in ANTHROPIC:
        return anthropic_error(start["status"], problem["detail"], headers=headers)
    wrong = [".".join(map(str, error["loc"][1:])) for error in problem.get("errors", ())]
    param = problem.get("param") or next(iter(wrong), None) or None
    return openai_error(start["status"], problem["detail"], code=problem.get("code"), param=param, headers=headers)
