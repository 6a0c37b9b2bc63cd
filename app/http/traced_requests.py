"""A span for each request, with its route, status and duration, and the run, trajectory or evaluation that it was
about.

Nothing else from the caller is recorded, because headers, queries and bodies can contain keys.
"""

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnloop_service.app.auth.scopes import route_path

_UNTRACED = ("/health/", "/metrics", "/static")
"""Paths that are polled by machines, and static files."""
_TRACE_CONTEXT = (b"traceparent", b"tracestate")
_METHODS = {"GET", "HEAD", "OPTIONS", "POST", "PATCH", "PUT", "DELETE"}
_IDS = ("run_id", "trajectory_id", "evaluation_id")
"""Path parameters that become span attributes if the object exists. Otherwise their values would be arbitrary."""


class TracedRequests:
    """ASGI middleware, the outermost one. It continues a caller's trace (W3C Trace Context)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracer: Tracer | None = None
        if scope["type"] == "http" and not route_path(scope).startswith(_UNTRACED):
            tracer = scope["app"].state.service.tracing.request_tracer
        if tracer is None:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE_CONTEXT}
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        caller = TraceContextTextMapPropagator().extract(carrier)
        span = tracer.start_span(method, caller, SpanKind.SERVER, {"http.request.method": method})
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _record_response(span, message)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            if (route := getattr(scope.get("route"), "path", None)) is not None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            if 200 <= status < 300:
                parameters = scope.get("path_params", {})
                span.set_attributes({f"learnloop.{name}": parameters[name] for name in _IDS if name in parameters})
            span.end()


def _record_response(span: Span, start: Message) -> None:
    headers = dict(start["headers"])
    span.set_attribute("http.response.status_code", start["status"])
    span.set_attribute("learnloop.request_id", headers.get(b"x-request-id", b"").decode("latin-1"))
    if start["status"] >= 500:
        span.set_status(StatusCode.ERROR)
