"""The masks of constrained replies: which tokens a grammar lets through next, computed on threads beside the batch.

A mask usually takes less time than the forward pass that runs meanwhile. One that takes longer is waited for by its
own reply only: the batch decodes without that row until the mask is there. When a mask is ready decides when a token is
sampled, never which.
"""

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import PriorityQueue
from typing import TYPE_CHECKING

from training.engine.sampling.requests import GrammarFailed

if TYPE_CHECKING:  # its parser is loaded when it is first needed
    from training.engine.sampling.constraint import Bits, Constraint, Grammar

GRACE_S = 0.005
"""Longest time for which a decode step waits for masks."""
TOKEN_S = 0.02
"""Processor time that each token adds to what the masks of its reply may take. The usual mask takes a hundredth."""
THREADS = max(2, (os.cpu_count() or 1) // 4)


class MaskThreads:
    """Computes the masks of many replies. The reply that has used the least time is served first, so that a slow
    grammar delays its own replies rather than others'."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="masks")
        self._waiting: PriorityQueue[tuple[float, int, ReplyMasks]] = PriorityQueue()
        self._numbers = itertools.count()

    def submit(self, masks: "ReplyMasks") -> None:
        """Compute a reply's next mask. Each submission lets a thread take one mask, not necessarily this one."""
        self._waiting.put((masks.spent_s, next(self._numbers), masks))
        self._threads.submit(lambda: self._waiting.get()[-1].compute())


class ReplyMasks:
    """The masks of one reply, one after the other. All but `compute` belongs to the thread that samples."""

    def __init__(self, grammar: "Grammar", threads: MaskThreads, allowed_s: float) -> None:
        """`allowed_s` is the processor time that the masks may take in all, besides TOKEN_S for each token."""
        self._grammar = grammar
        self._threads = threads
        self._allowed_s = allowed_s
        self._constraint: Constraint | None = None
        self._token: int | None = None
        self._mask: Future[Bits] | None = None
        self._missed = False
        self.spent_s = 0.0
        """Processor time that the masks have taken."""

    def begin(self) -> None:
        """Have the first mask computed, if that was not begun before."""
        if self._mask is None:
            self._submit()

    def take(self, token: int) -> None:
        """Continue the reply with a token, and have the mask of the next one computed."""
        self._token = token
        self._allowed_s += TOKEN_S
        self._submit()

    @property
    def late(self) -> bool:
        """Whether the batch decodes without this reply, because its mask was not ready in time and still is not."""
        return self._missed and not self._future().done()

    def allowed(self) -> "Bits | None":
        """The tokens that can come next; None if the mask is late. Raises GrammarFailed."""
        future = self._future()
        self._missed = not future.done()
        return None if self._missed else future.result()

    def compute(self) -> None:
        """Compute the next mask, on the thread that calls."""
        future, began = self._future(), time.thread_time()
        try:
            mask = self._next_mask()
        except BaseException as error:  # which a panic in llguidance is
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))
            return
        self.spent_s += time.thread_time() - began
        if self.spent_s > self._allowed_s:
            future.set_exception(
                GrammarFailed(
                    f"the reply's schema is too slow to enforce: it took {self.spent_s:.2f} s of processor time, where "
                    f"{self._allowed_s:.2f} s are allowed so far. Simplify its patterns and alternatives"
                )
            )
        else:
            future.set_result(mask)

    def _next_mask(self) -> "Bits":
        if self._constraint is None:
            self._constraint = self._grammar.begin()
        elif self._token is not None:
            self._constraint.take(self._token)
        mask = self._constraint.allowed()
        if self._constraint.error:
            raise GrammarFailed(f"the reply cannot be constrained: {self._constraint.error}")
        return mask

    def _submit(self) -> None:
        self._mask, self._missed = Future(), False
        self._threads.submit(self)

    def _future(self) -> "Future[Bits]":
        assert self._mask is not None
        return self._mask


def wait_for_all(replies: Sequence[ReplyMasks]) -> None:
    """Wait for the masks of these replies, at most as long as a decode step may."""
    wait([each._future() for each in replies], GRACE_S)


def wait_for_one(replies: Sequence[ReplyMasks]) -> None:
    """Wait until one of these replies has its mask, at most as long as a decode step may."""
    wait([each._future() for each in replies], GRACE_S, FIRST_COMPLETED)
