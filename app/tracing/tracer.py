"""Turns spans into calls of W&B Weave, where a project and a key are configured.

A span is made fit to be sent where it begins and where it ends; sending is `WeaveSender`'s affair. Nothing here waits
for the network or raises.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from app.settings import Settings
from app.tracing.redaction import Redactor, secrets_of
from app.tracing.weave_api import WeaveApi
from app.tracing.weave_sender import Event, WeaveSender
from environment.base import Json

_LONG = ("learn_loop", "baseline", "iteration")
"""Spans that are shown while they last; of all others the end says everything."""
_MARKS = ("run_id", "iteration")
"""Inputs that become attributes of the span and of all spans in it, so that calls can be found by them."""
_CLOSE_S = 5.0
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class _Call:
    """A span under way, and what its record begins with."""

    id: str
    trace_id: str
    marks: Mapping[str, Json]
    record: Mapping[str, Json]
    long: bool


class WeaveTracer:
    """A `Tracer` for any thread. `close` sends what is left."""

    def __init__(self, sender: WeaveSender, redactor: Redactor) -> None:
        self._sender = sender
        self._redactor = redactor

    def start(self, name: str, inputs: Mapping[str, Json], parent: object | None) -> object:
        """See `environment.trace.Tracer`."""
        try:
            call = self._call(name, inputs, parent if isinstance(parent, _Call) else None)
            if call.long:
                self._sender.put(Event("start", _encoded(call.record)))
            return call
        except Exception as error:
            self._sender.warn("a span was not traced", error)
            return None

    def end(self, call: object, output: Json, error: BaseException | None) -> None:
        """See `environment.trace.Tracer`."""
        try:
            if isinstance(call, _Call):
                self._sender.put(self._ended(call, output, error))
        except Exception as problem:
            self._sender.warn("a span was not traced", problem)

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.to_thread(self._sender.close, _CLOSE_S)

    def _call(self, name: str, inputs: Mapping[str, Json], parent: _Call | None) -> _Call:
        id = _new_id()
        own = self._redactor.value({mark: inputs[mark] for mark in _MARKS if mark in inputs})
        marks = own if parent is None else {**parent.marks, **own}
        record = {
            "id": id,
            "trace_id": id if parent is None else parent.trace_id,
            "parent_id": None if parent is None else parent.id,
            # A tool's name is whatever the model wrote.
            "op_name": re.sub(r"[^\w.-]+", "-", self._redactor.text(name))[:_MAX_NAME],
            "started_at": _now(),
            "attributes": marks,
            "inputs": self._redactor.value(inputs),
        }
        return _Call(id, record["trace_id"], marks, record, name in _LONG)

    def _ended(self, call: _Call, output: Json, error: BaseException | None) -> Event:
        ended = {
            "ended_at": _now(),
            "output": self._redactor.value(output),
            "exception": None if error is None else self._exception(error),
            "summary": {"status_counts": {"success": int(error is None), "error": int(error is not None)}},
        }
        begun = {key: call.record[key] for key in ("id", "trace_id", "started_at")} if call.long else call.record
        return Event("end" if call.long else "complete", _encoded({**begun, **ended}))

    def _exception(self, error: BaseException) -> str:
        """In the form of Weave's own client; without the traceback, which may quote anything."""
        return json.dumps({"type": type(error).__name__, "message": self._redactor.text(str(error)), "traceback": []})


def weave_tracer(settings: Settings) -> WeaveTracer | None:
    """The tracer that the settings ask for, at work; None if they do not name a project and a key."""
    if settings.weave_project is None or settings.wandb_api_key is None:
        return None
    api = WeaveApi(
        settings.weave_project,
        settings.wandb_api_key.get_secret_value(),
        base_url=settings.wandb_base_url,
        trace_url=settings.wf_trace_server_url,
    )
    sender = WeaveSender(api)
    sender.start()
    return WeaveTracer(sender, Redactor(secrets_of(settings)))


def _encoded(record: Mapping[str, Json]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _new_id() -> str:
    """A UUIDv7 (RFC 9562), as Weave's client makes them: they sort by time."""
    bits = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    bits = bits & ~(0xF << 76) | (7 << 76)
    return str(UUID(int=bits & ~(3 << 62) | (2 << 62)))
