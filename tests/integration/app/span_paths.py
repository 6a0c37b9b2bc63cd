"""Where a span is in its tree."""

from collections.abc import Mapping

from tests.fakes.trace_server import SentSpan


def path(span: SentSpan, spans: Mapping[str, SentSpan]) -> tuple[str, ...]:
    """Names from the root down to the span."""
    return (*(path(spans[span.parent_id], spans) if span.parent_id else ()), span.name)
