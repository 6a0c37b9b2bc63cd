"""The queue of what goes to Weave, and the thread that sends it: whoever puts something in waits for nothing."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from app.tracing.weave_api import Refused, WeaveApi

_MAX_QUEUED = 20_000
_MAX_QUEUED_BYTES = 64_000_000
_MAX_BATCH = 100
_MAX_BATCH_BYTES = 4_000_000
_GATHER_S = 0.5
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_WARN_EVERY_S = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object to be sent: the start or the end of a long call, or a whole one."""

    kind: Literal["start", "end", "complete"]
    body: bytes


class WeaveSender:
    """Sends events in the background, again and again while Weave is away. When the queue is full the oldest go."""

    def __init__(self, api: WeaveApi, *, max_queued: int = _MAX_QUEUED, max_bytes: int = _MAX_QUEUED_BYTES) -> None:
        self._api = api
        self._max_queued, self._max_bytes = max_queued, max_bytes
        self._lock = threading.Lock()
        # Starts and ends are few, and without them the other calls have no place in the tree: whole calls go first.
        self._marks: deque[Event] = deque()
        self._whole: deque[Event] = deque()
        self._bytes = 0
        self._dropped = 0
        self._filled, self._closing = threading.Event(), threading.Event()
        self._warned_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="weave", daemon=True)

    def start(self) -> None:
        """Begin; the project is looked for at once."""
        self._thread.start()

    def put(self, event: Event) -> None:
        """Send it some time soon."""
        with self._lock:
            (self._whole if event.kind == "complete" else self._marks).append(event)
            self._bytes += len(event.body)
            self._trim()
        self._filled.set()

    def close(self, timeout_s: float) -> None:
        """Send what is left, for so long; then give up and say how much never arrived."""
        self._closing.set()
        self._filled.set()
        self._thread.join(timeout_s)
        with self._lock:
            lost = self._dropped + len(self._marks) + len(self._whole)
        if lost or self._thread.is_alive():
            log.warning("some traces never reached Weave", lost=lost, still_sending=self._thread.is_alive())

    def warn(self, message: str, error: Exception) -> None:
        """Log it, unless something was logged less than a minute ago."""
        with self._lock:
            now = time.monotonic()
            if self._warned_at is not None and now < self._warned_at + _WARN_EVERY_S:
                return
            self._warned_at = now
            figures = {"queued": len(self._marks) + len(self._whole), "dropped": self._dropped}
        log.warning(message, error=f"{type(error).__name__}: {error}", **figures)

    def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            if self._deliver():
                pause_s = _FIRST_PAUSE_S
                if not self._closing.is_set():  # else `close` may have set `_filled` before the empty queue cleared it
                    self._filled.wait()
                    self._closing.wait(_GATHER_S)
            else:
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._deliver()
        self._api.close()

    def _deliver(self) -> bool:
        """Empty the queue; whether that worked."""
        batch: Sequence[Event] = ()
        try:
            if self._api.project is None:
                self._api.open()
                log.info("traces go to Weave", project=self._api.project)
            while batch := self._take():
                self._send(batch)
        except Exception as error:
            self._put_back(batch)
            self.warn("traces do not reach Weave, runs go on without it", error)
            return False
        return True

    def _send(self, batch: Sequence[Event]) -> None:
        bodies = [event.body for event in batch]
        try:
            match batch[0].kind:
                case "start":
                    self._api.start(bodies[0])
                case "end":
                    self._api.end(bodies[0])
                case "complete":
                    self._api.complete(bodies)
        except Refused as error:
            if len(batch) == 1:
                with self._lock:
                    self._dropped += 1
                self.warn("Weave does not take a call", error)
            else:  # for the sake of one of them, perhaps
                middle = len(batch) // 2
                self._send(batch[:middle])
                self._send(batch[middle:])

    def _take(self) -> list[Event]:
        """What goes out in one request: a start, an end, or some whole calls; nothing if the queue is empty."""
        with self._lock:
            if self._marks:
                batch = [self._marks.popleft()]
            else:
                batch, size = [], 0
                while self._whole and len(batch) < _MAX_BATCH and size < _MAX_BATCH_BYTES:
                    batch.append(self._whole.popleft())
                    size += len(batch[-1].body)
            self._bytes -= sum(len(event.body) for event in batch)
            if not batch:
                self._filled.clear()
            return batch

    def _put_back(self, batch: Sequence[Event]) -> None:
        with self._lock:
            for event in reversed(batch):
                (self._whole if event.kind == "complete" else self._marks).appendleft(event)
                self._bytes += len(event.body)
            self._trim()

    def _trim(self) -> None:
        """Drop the oldest until the rest fits."""
        while self._bytes > self._max_bytes or len(self._whole) + len(self._marks) > self._max_queued:
            dropped = (self._whole or self._marks).popleft()
            self._bytes -= len(dropped.body)
            self._dropped += 1
