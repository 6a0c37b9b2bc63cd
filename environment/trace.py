"""Spans: who did what inside what, for whoever watches. Without a watcher they cost nothing.

    with span("rollout", scenario_id=scenario.id) as traced:
        ...
        traced.output = {"reward": reward}

Spans nest by context, so that nobody passes a tracer around: tasks and `asyncio.to_thread` inherit theirs, a thread of
one's own begins without. A tracer must neither block nor raise.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from environment.base import Json


class Tracer(Protocol):
    """Receives spans. A call identifies a span; None stands for one that is not recorded."""

    def start(self, name: str, inputs: Mapping[str, Json], parent: object | None) -> object:
        """A span begins; returns what identifies it."""

    def end(self, call: object, output: Json, error: BaseException | None) -> None:
        """It ended, with its output or an error."""


@dataclass(slots=True)
class Span:
    """A span under way; set `output` to what came of it."""

    output: Json = None


_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
_parent: ContextVar[object | None] = ContextVar("parent", default=None)


@contextmanager
def tracing(tracer: Tracer | None) -> Iterator[None]:
    """Send the spans of this context to that tracer."""
    token = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(token)


@contextmanager
def span(name: str, **inputs: Json) -> Iterator[Span]:
    """A span around the block. What the block raises is noted and raised on."""
    tracer = _tracer.get()
    traced = Span()
    if tracer is None:
        yield traced
        return
    call = tracer.start(name, inputs, _parent.get())
    token = _parent.set(call)
    try:
        yield traced
    except BaseException as error:
        tracer.end(call, traced.output, error)
        raise
    else:
        tracer.end(call, traced.output, None)
    finally:
        _parent.reset(token)
