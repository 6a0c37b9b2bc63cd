"""Spans: who did what, and within which other span, through OpenTelemetry's API. Without a tracer they cost nothing.

    with span("iteration", iteration=1) as traced:
        ...
        traced.output = {"reward": reward}

Spans nest by OpenTelemetry's context, so no tracer has to be passed around: tasks and `asyncio.to_thread` inherit the
context, while a new thread starts without one. A span has its inputs and its output as JSON, under OpenInference's
names; spans of models and tools also use the GenAI names (`environment/genai_spans.py`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from opentelemetry import baggage
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context

from learnloop_service.environment.base import Json

Attributes = dict[str, str | int | float | bool | list[str]]

Output = TypeVar("Output")

INPUT, OUTPUT = "input.value", "output.value"
MARKS = {"run_id": "learnloop.run_id", "iteration": "learnloop.iteration"}
"""Inputs that all spans below also carry as attributes, so that spans can be found by them."""


@dataclass(slots=True)
class Span(Generic[Output]):
    """An open span; set `output` to its result."""

    output: Output | None = None


_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


@contextmanager
def tracing(tracer: Tracer | None, parent: Context | None = None) -> Iterator[None]:
    """Send the spans of the block to that tracer, as a new tree or below `parent`."""
    token, context = _tracer.set(tracer), attach(parent or Context())
    try:
        yield
    finally:
        detach(context)
        _tracer.reset(token)


def span(name: str, **inputs: Json) -> AbstractContextManager[Span[Json]]:
    """Open a span around the block. An exception of the block is recorded and re-raised."""
    return recorded(name, lambda: attributes_of(inputs), lambda output: {OUTPUT: encoded(output)}, marks=inputs)


@contextmanager
def recorded(
    name: str,
    begun: Callable[[], Attributes],
    ended: Callable[[Output], Attributes],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    marks: Mapping[str, Json] | None = None,
) -> Iterator[Span[Output]]:
    """Open a span with the attributes that `begun` returns, and those that `ended` returns for its output. Neither is
    called without a tracer."""
    tracer = _tracer.get()
    traced = Span[Output]()
    if tracer is None:
        yield traced
        return
    context = marked(get_current(), marks or {})
    marks_above = {mark: value for mark, value in baggage.get_all(context).items() if isinstance(value, str | int)}
    recording = tracer.start_span(name, context, kind, {**_attributes_or_error(begun), **marks_above})
    token = attach(set_span_in_context(recording, context))
    try:
        yield traced
    except BaseException as error:
        fail(recording, error)
        raise
    finally:
        detach(token)
        if (output := traced.output) is not None:
            recording.set_attributes(_attributes_or_error(lambda: ended(output)))
        recording.end()


def _attributes_or_error(attributes: Callable[[], Attributes]) -> Attributes:
    """Return the attributes, or the type of an error: a failure of tracing must not fail the traced work."""
    try:
        return attributes()
    except Exception as error:
        return {"learnloop.untraced": type(error).__name__}


def marked(context: Context, inputs: Mapping[str, Json]) -> Context:
    """Return the context for spans below one with these inputs."""
    for name, mark in MARKS.items():
        if isinstance(value := inputs.get(name), str | int):
            context = baggage.set_baggage(mark, value, context)
    return context


def attributes_of(inputs: Mapping[str, Json]) -> Attributes:
    """Return the inputs as one JSON text, and scalar ones also as separate attributes that can be searched."""
    plain = {f"learnloop.{name}": value for name, value in inputs.items() if isinstance(value, str | int | float)}
    return {**plain, INPUT: encoded(dict(inputs))}


def encoded(value: object) -> str:
    """Return the value as JSON; an object that is not JSON appears only as its type's name."""
    return json.dumps(value, ensure_ascii=False, default=lambda unfit: f"<{type(unfit).__name__}>")


def fail(recording: OtelSpan, error: BaseException) -> None:
    """Record the exception that ended the span, without its traceback, which can quote anything."""
    recording.set_attribute("error.type", type(error).__name__)
    with suppress(Exception):  # The error's own `str` can raise.
        recording.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
