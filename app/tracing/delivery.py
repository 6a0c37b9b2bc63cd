"""Delivers spans to a destination: a bounded queue, redaction, and retries while the destination is unavailable.

OpenTelemetry's batch processor provides the queue and the thread. Its exporters drop a batch after ten seconds; ours
retries until it is closed. Ending a span never blocks.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status
from opentelemetry.util.types import AttributeValue

from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.tracing.destinations import Destination, NotTaken
from learnloop_service.app.tracing.redaction import Redactor

_MAX_BATCH = 100
_MAX_BATCH_SIZE = 4_000_000
_GATHER_S = 0.5
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MAX_NAME = 128
_REFUSALS = (400, 413, 422)
_OPERATION = "gen_ai.operation.name"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Maximum spans in the queue of one destination, and maximum characters of their attributes."""

    spans: int = 20_000
    size: int = 64_000_000


class _Queue:
    """Counts of queued and lost spans."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._size = 0
        self.waiting = 0
        self.lost = 0

    def enter(self, span: ReadableSpan) -> bool:
        """Count a span as queued and return True, or count it as lost and return False if there is no room."""
        size = _size(span)
        # A tenth of the room is reserved for spans that have children: iterations and evaluations.
        spans = self._limits.spans * (9 if _OPERATION in (span.attributes or {}) else 10) // 10
        with self._lock:
            fits = self.waiting < spans and self._size + size <= self._limits.size
            if fits:
                self.waiting += 1
                self._size += size
            else:
                self.lost += 1
        return fits

    def leave(self, spans: Sequence[ReadableSpan]) -> None:
        """Remove spans that were sent or dropped."""
        with self._lock:
            self.waiting -= len(spans)
            self._size -= sum(map(_size, spans))

    def lose(self, count: int) -> None:
        """Count spans that were dropped."""
        with self._lock:
            self.lost += count


class Delivery(BatchSpanProcessor):
    """Sends spans to a destination from a separate thread. When the queue is full, new spans are dropped."""

    def __init__(self, destination: Destination, redactor: Redactor, limits: QueueLimits = QueueLimits()) -> None:
        self._name = destination.name
        self._queue = _Queue(limits)
        self._sender = _Sender(destination, redactor, self._queue)
        super().__init__(
            self._sender,
            max_queue_size=limits.spans,
            max_export_batch_size=min(_MAX_BATCH, limits.spans),
            schedule_delay_millis=_GATHER_S * 1000,
        )

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`."""
        if self._queue.enter(span):
            super().on_end(span)

    def close(self, timeout_s: float) -> None:
        """Send the remaining spans until the timeout, then drop the rest and log how many never arrived."""
        self._sender.closing.set()
        closing = threading.Thread(target=self.shutdown, name="close-traces", daemon=True)
        closing.start()
        closing.join(timeout_s)
        self._sender.given_up = True
        lost = self._queue.lost + self._queue.waiting
        if lost or closing.is_alive():
            log.warning(f"some traces never reached {self._name}", lost=lost, still_sending=closing.is_alive())


class _Sender(SpanExporter):
    """Redacts spans and sends them, with retries."""

    def __init__(self, destination: Destination, redactor: Redactor, queue: _Queue) -> None:
        self._to = destination
        self._redactor = redactor
        self._queue = queue
        self._connected = False
        self._repeated = RepeatedLog(log)
        self.closing = threading.Event()
        self.given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`. Blocks while the destination is unavailable, or until `closing`."""
        for batch in _batches(spans):
            try:
                self._deliver([self._fit(span) for span in batch])
            finally:
                self._queue.leave(batch)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._to.session.close()

    def _deliver(self, spans: Sequence[ReadableSpan]) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self.given_up:
            last = self.closing.is_set()
            if (problem := self._problem(spans)) is None:
                return
            if isinstance(problem, NotTaken) and problem.status in _REFUSALS:
                return self._without_the_refused(spans, problem)
            self._warn(f"traces do not reach {self._to.name}, runs go on without it", problem)
            self.given_up = last
            self.closing.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._queue.lose(len(spans))

    def _without_the_refused(self, spans: Sequence[ReadableSpan], problem: Exception) -> None:
        """Handle a refused batch. One span can be the reason, so send the halves separately."""
        if len(spans) == 1:
            self._queue.lose(1)
            return self._warn(f"{self._to.name} refuses a span", problem)
        middle = len(spans) // 2
        self._deliver(spans[:middle])
        self._deliver(spans[middle:])

    def _problem(self, spans: Sequence[ReadableSpan]) -> Exception | None:
        """Send the spans and return the error, if any."""
        try:
            if not self._connected:
                self._to.connect()
                self._connected = True
                log.info(f"traces go to {self._to.name}")
            if self._to.exporter.export(spans) is SpanExportResult.SUCCESS:
                return None
            return self._to.session.problem or RuntimeError("the spans could not be encoded")
        except Exception as problem:
            return problem

    def _warn(self, message: str, problem: Exception) -> None:
        cause = self._redactor.clean_text(f"{type(problem).__name__}: {problem}")
        self._repeated.warning(message, error=cause, queued=self._queue.waiting, dropped=self._queue.lost)

    def _fit(self, span: ReadableSpan) -> ReadableSpan:
        """Return the span redacted for sending."""
        text = self._redactor.clean_text
        attributes = {name: self._fit_value(value) for name, value in (span.attributes or {}).items()}
        for name, other in (self._to.also or {}).items():
            if name in attributes:
                attributes[other] = attributes[name]
        return ReadableSpan(
            name=_fit_name(span, text(span.name)),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=attributes,
            kind=span.kind,
            instrumentation_scope=span.instrumentation_scope,
            status=Status(span.status.status_code, text(span.status.description) if span.status.description else None),
            start_time=span.start_time,
            end_time=span.end_time,
        )

    def _fit_value(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return self._fit_text(value)
        return [self._redactor.clean_text(str(element)) for element in value] if isinstance(value, Sequence) else value

    def _fit_text(self, value: str) -> str:
        """Redact a text, as JSON also by its keys. Truncated JSON cannot be parsed and is redacted as plain text."""
        if value.startswith(("{", "[")):
            try:
                return json.dumps(self._redactor.value(json.loads(value)), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        return self._redactor.clean_text(value)


def _fit_name(span: ReadableSpan, name: str) -> str:
    """Return a safe name for the span, since a tool's name is whatever the model wrote. Routes are kept."""
    return name[:_MAX_NAME] if span.kind is SpanKind.SERVER else re.sub(r"[^\w. -]+", "-", name)[:_MAX_NAME]


def _batches(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    """Yield the spans in batches that fit into one request."""
    batch: list[ReadableSpan] = []
    size = 0
    for span in spans:
        if batch and size + _size(span) > _MAX_BATCH_SIZE:
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += _size(span)
    if batch:
        yield batch


def _size(span: ReadableSpan) -> int:
    return sum(len(value) if isinstance(value, str) else 8 for value in (span.attributes or {}).values())
