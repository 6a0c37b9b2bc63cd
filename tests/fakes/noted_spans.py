"""A tracer that keeps the spans that ended."""

import json
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer


class Noted:
    """A tracer, and the spans that ended: each as `parent/name`, with what became of it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        spans = {span.context.span_id: span for span in self._exporter.get_finished_spans() if span.context}

        def path(span: ReadableSpan) -> str:
            above = spans.get(span.parent.span_id) if span.parent else None
            return f"{path(above)}/{span.name}" if above else span.name

        return {path(span): span for span in spans.values()}

    @property
    def ended(self) -> dict[str, tuple[Any, str | None]]:
        """Path to output and error."""
        attributes: dict[str, Mapping[str, Any]] = {path: span.attributes or {} for path, span in self.spans.items()}
        return {
            path: (json.loads(values.get("output.value", "null")), values.get("error.type"))
            for path, values in attributes.items()
        }
