"""Tracing as the settings ask for it: a tracer of our own, and the one tree that all workers of a run build.

A run's trace has the run's id: a ULID is as long as a trace id. So a worker that takes a run over goes on with its tree
without asking anybody.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer, set_span_in_context
from ulid import ULID

from app.settings import Settings
from app.tracing.redaction import MAX_PAYLOAD, Redactor, secrets_of
from environment.base import Json
from environment.trace import attributes_of, fail, marked, tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from app.tracing.delivery import Delivery

_CLOSE_S = 5.0
_SCOPE = "learnloop"


class Tracing:
    """Spans of whatever is traced. By default nobody watches, and nothing is recorded."""

    tracer: Tracer | None = None
    request_tracer: Tracer | None = None
    """For HTTP requests: their spans go to a collector only, as many of them as OTEL_TRACES_SAMPLER says."""

    @contextmanager
    def run(self, run_id: str, worker: str, inputs: Mapping[str, Json]) -> Iterator[None]:
        """Trace the block as a worker's share in a run, which has these inputs."""
        yield

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""


class RecordedTracing(Tracing):
    """Spans that go to one destination or several."""

    def __init__(
        self, provider: "TracerProvider", deliveries: "Sequence[Delivery]", requests: "Sequence[Delivery]" = ()
    ) -> None:
        """`requests` are those of the deliveries that take the spans of HTTP requests, too."""
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
        """Send the run's first span, and be below it.

        It ends where it begins, and is the same whoever sends it: a run may take days and several workers, and what
        they send has its place in the tree from the start.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        ulid = ULID.from_str(run_id)
        own = SpanContext(int(ulid), int(ulid) & (1 << 64) - 1, False, TraceFlags(TraceFlags.SAMPLED))
        accepted_ns = ulid.milliseconds * 1_000_000
        root = ReadableSpan(
            "learn_loop",
            own,
            resource=self._provider.resource,
            attributes=attributes_of(inputs),
            instrumentation_scope=InstrumentationScope(_SCOPE),
            start_time=accepted_ns,
            end_time=accepted_ns,
        )
        for delivery in self._deliveries:
            delivery.on_end(root)
        return marked(set_span_in_context(NonRecordingSpan(own), Context()), inputs)

    async def close(self) -> None:
        """See `Tracing`."""
        await asyncio.gather(*(asyncio.to_thread(each.close, _CLOSE_S) for each in self._deliveries))


def open_tracing(settings: Settings) -> Tracing:
    """Tracing to the destinations that the settings name, at work.

    The provider is not the process's: other libraries' spans do not come here, nor ours to where they send theirs.
    """
    if not settings.traced:
        return Tracing()
    # They take half a second to import.
    from app.tracing.delivery import Delivery
    from app.tracing.destinations import destinations

    redactor = Redactor(secrets_of(settings))
    found = [(each, Delivery(each, redactor)) for each in destinations(settings)]
    requests = [delivery for destination, delivery in found if destination.takes_requests]
    return RecordedTracing(make_provider(), [delivery for _, delivery in found], requests)


def make_provider(*, sample_all: bool = True) -> "TracerProvider":
    """Records spans, with attributes of a bounded size: every one, or those that OTEL_TRACES_SAMPLER chooses."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    resource = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "learnloop"}))
    return TracerProvider(
        sampler=ALWAYS_ON if sample_all else None,
        resource=resource,
        shutdown_on_exit=False,
        # More than what redaction leaves of a text that was cut, since the last that is left may be half of a secret.
        span_limits=SpanLimits(max_span_attribute_length=2 * MAX_PAYLOAD),
    )
