"""Destinations of spans, by OTLP over HTTP: an OpenTelemetry collector, and those that packages add.

A package adds one with an entry point in the group `learnloop.traces` that names a function of the service's settings,
which returns a Destination, or None if they do not ask for it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from learnloop_service.app.settings import Settings
from learnloop_service.environment import plugins

GROUP = "learnloop.traces"
_EXPORTERS_OWN = ("content-type", "content-encoding", "user-agent")

# The sender logs failures once a minute, so the exporter must not log each request.
logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)


class NotTaken(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class ExporterSession(requests.Session):  # type: ignore[misc, unused-ignore]
    """An HTTP session for one exporter. It sends each request once, keeps its error, and sends only our headers.

    The exporter would send OTEL_EXPORTER_OTLP_HEADERS, which can contain a key, to every destination.
    """

    def __init__(self, own_headers: Mapping[str, str]) -> None:
        super().__init__()
        self.own_headers = dict(own_headers)
        self.problem: Exception | None = None
        """Error of the last request, if any."""

    def request(self, method: str, url: str, **options: Any) -> Any:  # type: ignore[override, unused-ignore]
        """Send a request. Raises NotTaken, after which the exporter does not retry, or the errors of requests."""
        exporter_headers = {
            name: value for name, value in options.pop("headers").items() if name.lower() in _EXPORTERS_OWN
        }
        self.problem = None
        try:
            response = super().request(method, url, headers=exporter_headers | self.own_headers, **options)
            if not 200 <= response.status_code < 300:
                raise NotTaken(response.status_code, response.text)
            return response
        except Exception as problem:
            self.problem = problem
            raise


@dataclass(frozen=True, slots=True)
class Destination:
    """A server that receives spans."""

    name: str
    exporter: OTLPSpanExporter
    session: ExporterSession
    connect: Callable[[], None] = lambda: None
    """Called once before the first span, and again if it raised. Can block."""
    also: Mapping[str, str] | None = None
    """Attributes that the server also needs under another name."""
    takes_requests: bool = True
    """Whether the destination can use the spans of HTTP requests."""


def destinations(settings: Settings) -> list[Destination]:
    """Return the destinations in the settings. Raises PluginFault."""
    added = (plugins.build("destination of traces", point, settings) for point in plugins.registered(GROUP).values())
    return [destination for destination in (_collector(settings), *added) if destination is not None]


def _collector(settings: Settings) -> Destination | None:
    endpoint = settings.otel_exporter_otlp_traces_endpoint
    if endpoint is not None:
        url = str(endpoint)
    elif settings.otel_exporter_otlp_endpoint is not None:
        url = str(settings.otel_exporter_otlp_endpoint).rstrip("/") + "/v1/traces"
    else:
        return None
    session = ExporterSession(settings.otlp_headers)
    return Destination("the OpenTelemetry collector", OTLPSpanExporter(url, session=session), session)
