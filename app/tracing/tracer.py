"""Tracing according to the settings: a separate tracer, and one tree of spans for all workers of a run.

The id of a run's trace is the run's id, since a ULID is as long as a trace id. A worker that takes over a run can
therefore add to its tree without coordination.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer, set_span_in_context
from ulid import ULID

from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import MAX_PAYLOAD, Redactor, secrets_of
from learnloop_service.environment.base import Json
from learnloop_service.environment.installation import install_command
from learnloop_service.environment.trace import attributes_of, fail, marked, tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from learnloop_service.app.tracing.delivery import Delivery

_CLOSE_S = 5.0
_SCOPE = "learnloop"
_EXPORTERS = ("opentelemetry.sdk", "opentelemetry.exporter", "requests")


class TracingUnavailable(Exception):
    """What sends traces is not installed. The message says how to add it."""


class Tracing:
    """Provides tracers. This base class records nothing; it is the default."""

    tracer: Tracer | None = None
    request_tracer: Tracer | None = None
    """Tracer for HTTP requests. Their spans are sent only to a collector, sampled according to OTEL_TRACES_SAMPLER."""

    @contextmanager
    def run(self, run_id: str, worker: str, inputs: Mapping[str, Json]) -> Iterator[None]:
        """Trace the block as one worker's part of a run with these inputs."""
        yield

    async def close(self) -> None:
        """Send the remaining spans, for a few seconds at most."""


class RecordedTracing(Tracing):
    """Tracing with one or more destinations."""

    def __init__(
        self, provider: "TracerProvider", deliveries: "Sequence[Delivery]", requests: "Sequence[Delivery]" = ()
    ) -> None:
        """`requests` are the deliveries that also receive the spans of HTTP requests."""
        self._provider = provider
        self._deliveries = deliveries
        for delivery in deliveries:
            provider.add_span_processor(delivery)
        self.tracer: Tracer = provider.get_tracer(_SCOPE)
        if requests:
            sampled = make_provider(sample_all=False)
            for delivery in requests:
                sampled.add_span_processor(delivery)
            self.request_tracer = sampled.get_tracer(_SCOPE)

    @contextmanager
    def run(self, run_id: str, worker: str, inputs: Mapping[str, Json]) -> Iterator[None]:
        """See `Tracing`."""
        context = self._root(run_id, {"run_id": run_id, **inputs})
        share = self.tracer.start_span("drive", context, attributes=attributes_of({"run_id": run_id, "worker": worker}))
        try:
            with tracing(self.tracer, context):
                yield
        except BaseException as error:
            fail(share, error)
            raise
        finally:
            share.end()

    def _root(self, run_id: str, inputs: Mapping[str, Json]) -> Context:
        """Send the run's root span and return the context under it.

        The span has no duration and is the same from every worker. A run can take days and several workers, and their
        spans have their place in the tree from the start.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        ulid = ULID.from_str(run_id)
        span_context = SpanContext(int(ulid), int(ulid) & (1 << 64) - 1, False, TraceFlags(TraceFlags.SAMPLED))
        accepted_ns = ulid.milliseconds * 1_000_000
        root = ReadableSpan(
            "learn_loop",
            span_context,
            resource=self._provider.resource,
            attributes=attributes_of(inputs),
            instrumentation_scope=InstrumentationScope(_SCOPE),
            start_time=accepted_ns,
            end_time=accepted_ns,
        )
        for delivery in self._deliveries:
            delivery.on_end(root)
        return marked(set_span_in_context(NonRecordingSpan(span_context), Context()), inputs)

    async def close(self) -> None:
        """See `Tracing`."""
        await asyncio.gather(*(asyncio.to_thread(delivery.close, _CLOSE_S) for delivery in self._deliveries))


def open_tracing(settings: Settings) -> Tracing:
    """Start tracing to the destinations in the settings.

    The provider is not the process's global one, so our spans are kept apart from those of other libraries. Raises
    TracingUnavailable.
    """
    if not settings.traced:
        return Tracing()
    if lacking := [module for module in _EXPORTERS if find_spec(module) is None]:
        what = f"traces need {', '.join(lacking)} (the extra `tracing`), not installed here."
        raise TracingUnavailable(f"{what} To add it: {install_command('tracing')}")
    # imported late, because they take half a second
    from learnloop_service.app.tracing.delivery import Delivery
    from learnloop_service.app.tracing.destinations import destinations

    redactor = Redactor(secrets_of(settings))
    deliveries = [(destination, Delivery(destination, redactor)) for destination in destinations(settings)]
    requests = [delivery for destination, delivery in deliveries if destination.takes_requests]
    return RecordedTracing(make_provider(), [delivery for _, delivery in deliveries], requests)


def make_provider(*, sample_all: bool = True) -> "TracerProvider":
    """Return a provider that records all spans, or those that OTEL_TRACES_SAMPLER chooses, with bounded attributes."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    resource = Resource.create()  # includes OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "learnloop"}))
    return TracerProvider(
        sampler=ALWAYS_ON if sample_all else None,
        resource=resource,
        shutdown_on_exit=False,
        # The limit exceeds what redaction keeps of a text, because a text cut here could end in the middle of a secret.
        span_limits=SpanLimits(max_span_attribute_length=2 * MAX_PAYLOAD),
    )
