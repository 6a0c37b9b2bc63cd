"""Samples replies for many conversations at once, from one or more sets of weights.

Whoever owns torch calls `step` while it is `busy`. Its only threads compute the masks of constrained replies.
"""

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict

from training.engine.sampling.batch import Request
from training.engine.sampling.figures import Counts, SamplingFigures
from training.engine.sampling.masks import MaskThreads, ReplyMasks
from training.engine.sampling.requests import (
    ContextTooLong,
    Done,
    NonFiniteLogits,
    OnToken,
    OutOfMemory,
    Sample,
    SampleCancelled,
    SampleRequest,
    SamplingError,
    UnknownWeights,
)
from training.engine.sampling.scheduler import CACHE_BYTES, Scheduler
from training.engine.weights.weights import Batchable, Weights

__all__ = [
    "ContextTooLong",
    "NonFiniteLogits",
    "OutOfMemory",
    "Sample",
    "SampleCancelled",
    "SampleRequest",
    "Sampler",
    "SamplingError",
    "UnknownWeights",
]


class Sampler:
    """A queue of requests over a batch of conversations for each set of weights; those that can share one (Batchable)
    do.

    A request that names a seed gives the same tokens and bit-equal log-probabilities whatever else is sampled, in
    whatever order, and whatever the cache holds (with one thread on a CPU; see attention.py).
    """

    def __init__(self, slots: int = 64, cache_bytes: int | None = None) -> None:
        """`slots` conversations are decoded at once for each set of weights, or all that share a batch; each in use may
        fill `cache_bytes` (None: what suits the device; see Scheduler)."""
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._slots = slots
        self._cache_bytes = cache_bytes
        self._counts = Counts()
        self._mask_threads = MaskThreads()
        self._schedulers: list[Scheduler] = []
        """The most recently used is last."""
        self._scheduler_of: dict[str, Scheduler] = {}
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return any(scheduler.busy for scheduler in self._schedulers)

    @property
    def figures(self) -> SamplingFigures:
        """Of all weights together; may be read from any thread."""
        schedulers = list(self._schedulers)
        return SamplingFigures(
            batch_size=sum(each.batch_size for each in schedulers),
            requests_waiting=sum(each.requests_waiting for each in schedulers),
            cache_tokens=sum(each.cache_tokens for each in schedulers),
            cache_capacity_tokens=sum(each.cache_capacity_tokens for each in schedulers),
            cache_bytes=sum(each.cache_bytes for each in schedulers),
            **asdict(self._counts),
        )

    def set_weights(
        self,
        key: str,
        weights: Weights,
        decode: Callable[[Sequence[int]], str] | None = None,
        successor_of: str | None = None,
    ) -> None:
        """Sample requests for `key` from `weights`, which replace what the key stood for.

        `decode` turns token ids into text; requests with stop strings need it. Weights that cannot share a batch with
        those of the key `successor_of` take over the memory of their cache, if nobody samples from them now.
        """
        self.drop_weights(key)
        shared = self._shared(weights)
        if shared is not None:
            shared.add(key, weights, decode)
            self._scheduler_of[key] = shared
            return
        scheduler = Scheduler(key, weights, self._slots, self._cache_bytes, decode, self._counts)
        self._schedulers.append(scheduler)
        self._scheduler_of[key] = scheduler
        before = self._scheduler_of.get(successor_of) if successor_of else None
        if before is not None and not before.busy and before.weights.kv == weights.kv:
            scheduler.take_cache(before)

    def _shared(self, weights: Weights) -> Scheduler | None:
        """The scheduler of weights with which these can share a batch."""
        if not isinstance(weights, Batchable):
            return None
        for scheduler in self._schedulers:
            there = scheduler.weights
            if isinstance(there, Batchable) and there.batched_with == weights.batched_with:
                return scheduler
        return None

    def drop_weights(self, key: str) -> None:
        """Forget the key; its unfinished requests end with UnknownWeights."""
        scheduler = self._scheduler_of.pop(key, None)
        if scheduler is None:
            return
        scheduler.remove(key, UnknownWeights(key))
        if scheduler not in self._scheduler_of.values():
            self._schedulers.remove(scheduler)
            scheduler.release()

    def weights(self, key: str) -> Weights | None:
        """What the key stands for."""
        scheduler = self._scheduler_of.get(key)
        return scheduler.weights_of(key) if scheduler else None

    def rename(self, key: str, new: str) -> None:
        """Let an idle key's weights, which were changed in place, stand for another key, of which nothing is in the
        cache."""
        self._scheduler_of[new] = scheduler = self._scheduler_of.pop(key)
        scheduler.rename(key, new)

    def release_idle(self) -> None:
        """Give back the caches that nobody uses now."""
        for scheduler in self._schedulers:
            if not scheduler.busy:
                scheduler.release()

    def submit(self, request: SampleRequest, on_token: OnToken | None, done: Done) -> int:
        """Queue a request; returns its number, by which it can be cancelled.

        `on_token(id, logprob)` is called for each token and `done` once, with the sample or the reason why there is
        none (ContextTooLong and UnknownWeights at once); both are called in `step` and must not raise. Raises
        ValueError for a request that makes no sense.
        """
        number = next(self._numbers)
        scheduler = self._scheduler_of.get(request.weights_key)
        if scheduler is None:
            done(UnknownWeights(request.weights_key))
            return number
        _check(request, scheduler)
        room = scheduler.weights.context - len(request.prompt)
        if room < 1:
            done(ContextTooLong(len(request.prompt), scheduler.weights.context))
            return number
        seed = secrets.randbits(53) if request.seed is None else request.seed
        masks = ReplyMasks(request.grammar, self._mask_threads, request.grammar_s) if request.grammar else None
        scheduler.submit(Request(number, request, seed, min(request.max_tokens, room), on_token, done, masks))
        return number

    def cancel(self, number: int) -> None:
        """End a request with SampleCancelled; nothing if it is done."""
        for scheduler in self._schedulers:
            if scheduler.cancel(number, SampleCancelled("the request was cancelled")):
                return

    def step(self) -> None:
        """Admit and prefill what waits, decode one token for all, and refill what finished at the next step."""
        for scheduler in list(self._schedulers):
            if scheduler.busy and scheduler in self._schedulers:
                self._schedulers.remove(scheduler)
                self._schedulers.append(scheduler)
                self._make_room(scheduler)
                scheduler.step()

    def _make_room(self, scheduler: Scheduler) -> None:
        """Release idle caches, the longest unused first, while all together exceed the budget.

        Without one a scheduler takes what is free: then no other keeps more than it needs.
        """
        for other in list(self._schedulers):
            if sum(each.cache_bytes for each in self._schedulers) <= self._budget(scheduler):
                return
            if other is not scheduler and not other.busy:
                other.release()

    def _budget(self, scheduler: Scheduler) -> int:
        if self._cache_bytes is None and scheduler.weights.supports_packing:
            return 0
        return self._cache_bytes or CACHE_BYTES


def _check(request: SampleRequest, scheduler: Scheduler) -> None:
    if not request.prompt:
        raise ValueError("the prompt has no tokens")
    if not 0 <= min(request.prompt) <= max(request.prompt) < scheduler.weights.vocab_size:
        raise ValueError(f"a token id of the prompt is not in [0, {scheduler.weights.vocab_size})")
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {request.max_tokens}")
    if not 0.0 <= request.temperature < float("inf"):
        raise ValueError(f"temperature must be a number from 0 up, not {request.temperature}")
    if not 0.0 < request.top_p <= 1.0:
        raise ValueError(f"top_p must lie in (0, 1], not {request.top_p}")
    if not 0 <= request.top_k < 2**31:
        raise ValueError(f"top_k must be 0 (no limit) or more, not {request.top_k}")
    if not 0.0 <= request.min_p <= 1.0:
        raise ValueError(f"min_p must lie in [0, 1], not {request.min_p}")
    if request.top_logprobs < 0:
        raise ValueError(f"top_logprobs must not be negative, not {request.top_logprobs}")
    if request.stop and (not scheduler.can_decode(request.weights_key) or not all(request.stop)):
        raise ValueError("stop strings must not be empty, and need a decoder for these weights")
