"""Masks for constrained replies: the tokens that a grammar allows next, computed on threads while the batch decodes.

A mask usually takes less time than the forward pass that runs meanwhile. If one takes longer, only its own reply waits:
the batch decodes without that row until the mask is ready. The timing of masks decides when a token is sampled, never
which one.
"""

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ALL_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import PriorityQueue
from typing import TYPE_CHECKING

from learnloop_service.training.engine.sampling.requests import GrammarFailed

if TYPE_CHECKING:  # the grammar parser is loaded when first needed
    from learnloop_service.training.engine.sampling.constraint import Bits, Constraint, Grammar

GRACE_S = 0.005
"""Longest time for which a decode step waits for masks."""
TOKEN_S = 0.02
"""Processor time that each token adds to the limit for its reply's masks. A typical mask takes a hundredth of it."""
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
    """The masks of one reply, in order. All methods except `compute` must be called on the sampling thread."""

    def __init__(self, grammar: "Grammar", threads: MaskThreads, allowed_s: float) -> None:
        """`allowed_s` is the limit of processor time for all masks, in addition to TOKEN_S for each token."""
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
        """Request the first mask unless that was done before."""
        if self._mask is None:
            self._submit()

    def take(self, token: int) -> None:
        """Append a token to the reply and request the mask of the next one."""
        self._token = token
        self._allowed_s += TOKEN_S
        self._submit()

    @property
    def late(self) -> bool:
        """Whether the batch decodes without this reply, because its mask was not ready in time and still is not."""
        return self._missed and not self._future().done()

    def allowed(self) -> "Bits | None":
        """Return the tokens that can come next, or None if the mask is late. Raises GrammarFailed, or another exception
        if the parser crashed."""
        future = self._future()
        self._missed = not future.done()
        return None if self._missed else future.result()

    def compute(self) -> None:
        """Compute the next mask on the calling thread."""
        future, began = self._future(), time.thread_time()
        try:
            mask = self._next_mask()
        except BaseException as error:  # a panic in llguidance is not an Exception
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


def wait_for(replies: Sequence[ReplyMasks], until: str = ALL_COMPLETED) -> None:
    """Wait for the masks of all these replies, or until the first is there, for at most GRACE_S."""
    wait([reply._future() for reply in replies], GRACE_S, until)
