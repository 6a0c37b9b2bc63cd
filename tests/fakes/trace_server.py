"""An OpenTelemetry collector and W&B Weave on a real port: OTLP as protobuf, and the GraphQL for projects."""

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from learnloop_service.environment.json_type import Json
from tests.fakes.answering import Answer, answering

COLLECTOR = "/v1/traces"
WEAVE = "/traces/otel/v1/traces"


@dataclass(frozen=True)
class SentSpan:
    """A received span. `inputs` and `output` are what Weave would show."""

    name: str
    id: str
    trace_id: str
    parent_id: str | None
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Json]
    error: str | None

    @property
    def inputs(self) -> Json:
        return self._first("input.value", "gen_ai.input.messages")

    @property
    def output(self) -> Json:
        return self._first("output.value", "gen_ai.output.messages")

    def _first(self, *names: str) -> Json:
        text = next((self.attributes[name] for name in names if name in self.attributes), "null")
        try:
            return json.loads(text)
        except ValueError:
            return text


@dataclass
class TraceServer:
    """`projects` are the existing ones, as ENTITY/PROJECT; others can be created for `entity` only.

    A `status` other than 200 is the answer to spans. `poison` makes it 422 for requests that contain it. While
    `hanging` is set, no request is answered.
    """

    key: str = "w" * 40
    entity: str | None = "team"
    projects: set[str] = field(default_factory=set)
    status: int = 200
    poison: str | None = None
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body of each request, whatever its answer."""
    accepted: list[tuple[str, bytes]] = field(default_factory=list)
    """Path and body of the requests with spans that were answered with 200."""
    url: str = ""

    @property
    def received(self) -> str:
        """All bodies as text. Strings in protobuf are readable."""
        return "\n".join(body.decode(errors="replace") for _, _, body in self.requests)

    def spans(self, path: str = WEAVE) -> dict[str, SentSpan]:
        """Return the spans that were accepted at a path, by id."""
        return {span.id: span for at, body in self.accepted if at == path for span in _spans(body)}

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        status, content = self._answer(path, headers, body)
        return status, {"content-type": "application/json"}, json.dumps(content).encode()

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Json]:
        self.requests.append((path, headers, body))
        if self.hanging.is_set():
            self.released.wait()
            return 503, {}
        ours = headers.get("authorization") == "Basic " + base64.b64encode(f"api:{self.key}".encode()).decode()
        if not ours and path != COLLECTOR:
            return 401, {"message": "who are you?"}
        if path == "/graphql":
            return 200, self._graphql(json.loads(body))
        if self.status != 200:
            return self.status, {"message": "as scripted"}
        if path not in (COLLECTOR, WEAVE) or (path == WEAVE and headers.get("project_id") not in self.projects):
            return 404, {"message": f"no such route or project: {path}"}
        if headers.get("content-type") != "application/x-protobuf":
            return 415, {"message": "protobuf only"}
        if self.poison is not None and self.poison.encode() in body:
            return 422, {"detail": "as scripted"}
        self.accepted.append((path, body))
        return 200, {}

    def _graphql(self, request: Json) -> Json:
        variables = request.get("variables") or {}
        if "viewer" in request["query"]:
            entity = None if self.entity is None else {"name": self.entity}
            return {"data": {"viewer": {"username": "user", "defaultEntity": entity}}}
        if "upsertModel" in request["query"]:
            if variables["entity"] != self.entity:
                return {"errors": [{"message": "permission denied", "extensions": {"code": "PERMISSION_ERROR"}}]}
            self.projects.add(f"{variables['entity']}/{variables['name']}")
            return {"data": {"upsertModel": {"model": {"name": variables["name"]}}}}
        there = f"{variables['entityName']}/{variables['name']}" in self.projects
        return {"data": {"project": {"name": variables["name"]} if there else None}}


def _spans(body: bytes) -> Iterator[SentSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from map(_sent_span, scope.spans)


def _sent_span(span: Span) -> SentSpan:
    return SentSpan(
        span.name,
        span.span_id.hex(),
        span.trace_id.hex(),
        span.parent_span_id.hex() or None,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {attribute.key: _plain(attribute.value) for attribute in span.attributes},
        span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None,
    )


def _plain(value: AnyValue) -> Json:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(element) for element in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def trace_server(**options: Any) -> Iterator[TraceServer]:
    """Run a server while the context is open."""
    server = TraceServer(**options)
    with answering(server.answer) as server.url:
        try:
            yield server
        finally:
            server.released.set()
