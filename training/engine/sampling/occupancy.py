"""Which requests of a scheduler wait, which are prefilled and which are decoded, on which rows, and who gives way when
memory is short."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import structlog
import torch

from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.requests import OutOfMemory
from learnloop_service.training.engine.sampling.rows import Rows
from learnloop_service.training.engine.weights.paged_cache import OutOfPages, PagedCache
from learnloop_service.training.engine.weights.weights import Weights

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """Weights that requests name by a key."""

    weights: Weights
    decode: Callable[[Sequence[int]], str] | None
    """Turns token ids into text."""
    number: int
    """Owner of the cache rows that these weights computed, which are of no use to other weights."""


@dataclass(frozen=True, slots=True)
class StepAhead:
    """A decode step that was begun before it was known whose replies the previous step ended."""

    requests: dict[Request, int]
    """Index into `logits` of each request that the step is for, whichever row it has by now."""
    logits: torch.Tensor
    """Shape [M, vocabulary]."""


class Occupancy:
    """The requests of a scheduler and the rows of its cache. A row keeps its conversation when the reply is complete,
    until the row is needed."""

    def __init__(self, slots: int, cache_bytes: int | None) -> None:
        """`slots` and `cache_bytes` are those of Rows."""
        self.members: dict[str, Member] = {}
        self.waiting: deque[Request] = deque()
        self.gathers = False
        """Whether those that wait do so until more of them can be prefilled together."""
        self.filling: list[Request] = []
        """Requests with a row whose prompts are being computed."""
        self.active: dict[int, Request] = {}
        """Requests that are decoded, by row."""
        self.ahead: StepAhead | None = None
        self.rows = Rows(slots, cache_bytes)
        self._numbers = count()

    @property
    def weights(self) -> Weights:
        """The weights of any member, which differ in their adapters only."""
        return next(iter(self.members.values())).weights

    def add(self, key: str, weights: Weights, decode: Callable[[Sequence[int]], str] | None) -> None:
        """Add the weights that requests name `key`."""
        self.members[key] = Member(weights, decode, next(self._numbers))

    def member(self, request: Request) -> Member:
        """Return the weights that a request names."""
        return self.members[request.params.weights_key]

    def requests(self) -> list[Request]:
        """Return all requests, those that are decoded first."""
        return [*self.active.values(), *self.filling, *self.waiting]

    def running(self) -> list[Request]:
        """Return the requests that have a row."""
        return [*self.active.values(), *self.filling]

    @property
    def more_join(self) -> bool:
        """Whether requests that are not decoded yet are about to be."""
        return bool(self.filling or (self.waiting and not self.gathers))

    def ready_rows(self) -> list[int]:
        """Return in ascending order the rows that can be decoded now: those that do not wait for a mask."""
        return sorted(row for row, request in self.active.items() if not request.late)

    def leave(self, request: Request) -> None:
        """Take a request off its row, which keeps the conversation."""
        if request.row >= 0:
            self.active.pop(request.row, None)
            if self.ahead:  # if the request comes back, it may have other pages, so its step is computed again
                self.ahead.requests.pop(request, None)
            self.rows.leave(request.row)
            request.row = -1

    def fail(self, request: Request, reason: Exception) -> None:
        """End a request with an error."""
        self.leave(request)
        if request in self.filling:
            self.filling.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.on_done(reason)

    def preempt(self, requests: Sequence[Request]) -> None:
        """Return running requests to the head of the queue, with what they have sampled."""
        for request in reversed(requests):
            if request in self.filling:
                self.filling.remove(request)
            else:
                produced = int(self.rows.state.produced[request.row])
                request.ids = self.rows.state.ids[request.row, :produced].tolist()
                request.logprobs = self.rows.state.logprobs[request.row, :produced].tolist()
            self.leave(request)
            self.waiting.appendleft(request)

    def preempt_half(self) -> bool:
        """Preempt the younger half of the batch because memory ran out, and decode fewer together from now on.

        Returns False if fewer than two requests are decoded.
        """
        batch = sorted(self.active.values(), key=lambda request: request.number)
        if len(batch) < 2:
            return False
        most = len(batch) // 2
        log.warning("sampling out of memory", at_once=most)
        self.preempt(batch[most:])
        self.rows.decode_at_most(most)
        self.compact()
        return True

    def reserve(self, tokens: int) -> None:
        """Make the rows longer than `tokens` tokens."""
        if moved := self.rows.reserve(tokens, self.weights):
            self.active = {moved[row]: request for row, request in self.active.items()}
            for request in self.running():
                request.row = moved[request.row]

    def hold_next(self, cache: PagedCache) -> None:
        """Hold a page for the next token of each decoded request. While there are too few, the youngest is preempted.

        Raises OutOfPages if a single request is left and does not fit.
        """
        active = np.fromiter(self.active, dtype=np.int64, count=len(self.active))
        for row in cache.unready(active, self.rows.slots.lengths[active]).tolist():
            while row in self.active:
                length = int(self.rows.slots.lengths[row])
                try:
                    self.rows.hold(row, length, length + 1)
                    break
                except OutOfPages as error:
                    if len(self.active) == 1:
                        raise
                    youngest = max(self.active.values(), key=lambda request: request.number)
                    log.warning("sampling out of memory", at_once=len(self.active) - 1, reason=str(error))
                    self.preempt([youngest])

    def compact(self) -> None:
        """Move requests to the first rows, so that as few rows as possible are decoded."""
        for before, row in self.rows.compact():
            request = self.active.pop(before, None)
            if request is not None:
                self.active[row] = request
            else:
                request = next(request for request in self.filling if request.row == before)
            request.row = row


def explained(error: Exception) -> Exception:
    """Return OutOfMemory for the errors of other libraries that mean it, and other errors as they are."""
    return OutOfMemory(f"out of memory: {error}") if is_out_of_memory(error) else error
