"""Counts and times requests for Prometheus. They are labeled by route template, because paths are unbounded."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.instruments import EVENT_STREAMS, HTTP_REQUESTS, HTTP_SECONDS

_METHODS = {"GET", "HEAD", "OPTIONS", "POST", "PATCH", "PUT", "DELETE"}
_NO_ROUTE = "none"
"""Label for requests without a route: the path does not exist, or the request was refused before routing."""
_GONE = 499
"""Status if the client disconnected before the response began."""


class MeasuredRequests:
    """ASGI middleware around all others except tracing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, streams_for_s = time.perf_counter(), _GONE, None

        async def noted(message: Message) -> None:
            nonlocal status, streams_for_s
            if message["type"] == "http.response.start":
                status = message["status"]
                if dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
                    streams_for_s = time.perf_counter() - started
                    EVENT_STREAMS.inc()
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            seconds = time.perf_counter() - started if streams_for_s is None else streams_for_s
            if streams_for_s is not None:
                EVENT_STREAMS.dec()
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            route = getattr(scope.get("route"), "path", _NO_ROUTE)
            HTTP_REQUESTS.labels(method, route, status).inc()
            HTTP_SECONDS.labels(method, route).observe(seconds)
