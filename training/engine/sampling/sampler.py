"""Samples replies for many conversations at once, from one or more sets of weights.

It has no threads of its own: whoever owns torch calls `step` while it is `busy`.
"""

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict

from training.engine.sampling.batch import Request
from training.engine.sampling.figures import Counts, SamplingFigures
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
from training.engine.weights.weights import Weights

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
    """A queue of requests over a batch of conversations for each set of weights.

    A request that names a seed gives the same tokens and bit-equal log-probabilities whatever else is sampled, in
    whatever order, and whatever the cache holds (with one thread on a CPU; see attention.py).
    """

    def __init__(self, slots: int = 64, cache_bytes: int | None = None) -> None:
        """`slots` conversations are decoded at once for each set of weights; each in use may fill `cache_bytes` (None:
        what suits the device; see Scheduler)."""
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._slots = slots
        self._cache_bytes = cache_bytes
        self._counts = Counts()
        self._schedulers: dict[str, Scheduler] = {}
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return any(scheduler.busy for scheduler in self._schedulers.values())

    @property
    def figures(self) -> SamplingFigures:
        """Of all weights together; may be read from any thread."""
        schedulers = list(self._schedulers.values())
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

        `decode` turns token ids into text; requests with stop strings need it. If nobody samples from the weights of
        the key `successor_of` now, these take over their cache's memory.
        """
        self.drop_weights(key)
        self._schedulers[key] = scheduler = Scheduler(weights, self._slots, self._cache_bytes, decode, self._counts)
        before = self._schedulers.get(successor_of) if successor_of else None
        if before is not None and not before.busy and before.weights.kv == weights.kv:
            scheduler.take_cache(before)

    def drop_weights(self, key: str) -> None:
        """Forget the key; its unfinished requests end with UnknownWeights."""
        scheduler = self._schedulers.pop(key, None)
        if scheduler is not None:
            scheduler.close(UnknownWeights(key))

    def weights(self, key: str) -> Weights | None:
        """What the key stands for."""
        scheduler = self._schedulers.get(key)
        return scheduler.weights if scheduler else None

    def rename(self, key: str, new: str) -> None:
        """Let an idle key's weights, which were changed in place, stand for another key, with an empty cache."""
        scheduler = self._schedulers.pop(key)
        scheduler.forget()
        self._schedulers[new] = scheduler

    def release_idle(self) -> None:
        """Give back the caches that nobody uses now."""
        for scheduler in self._schedulers.values():
            if not scheduler.busy:
                scheduler.release()

    def submit(self, request: SampleRequest, on_token: OnToken | None, done: Done) -> int:
        """Queue a request; returns its number, by which it can be cancelled.

        `on_token(id, logprob)` is called for each token and `done` once, with the sample or the reason why there is
        none (ContextTooLong and UnknownWeights at once); both are called in `step` and must not raise. Raises
        ValueError for a request that makes no sense.
        """
        number = next(self._numbers)
        scheduler = self._schedulers.get(request.weights_key)
        if scheduler is None:
            done(UnknownWeights(request.weights_key))
            return number
        _check(request, scheduler)
        room = scheduler.weights.context - len(request.prompt)
        if room < 1:
            done(ContextTooLong(len(request.prompt), scheduler.weights.context))
            return number
        seed = secrets.randbits(53) if request.seed is None else request.seed
        constraint = request.grammar.begin() if request.grammar else None
        scheduler.submit(Request(number, request, seed, min(request.max_tokens, room), on_token, done, constraint))
        return number

    def cancel(self, number: int) -> None:
        """End a request with SampleCancelled; nothing if it is done."""
        for scheduler in self._schedulers.values():
            if scheduler.cancel(number, SampleCancelled("the request was cancelled")):
                return

    def step(self) -> None:
        """Admit and prefill what waits, decode one token for all, and refill what finished at the next step."""
        for key, scheduler in list(self._schedulers.items()):
            if scheduler.busy and self._schedulers.get(key) is scheduler:
                self._schedulers[key] = self._schedulers.pop(key)  # the most recently used is last
                self._make_room(scheduler)
                scheduler.step()

    def _make_room(self, scheduler: Scheduler) -> None:
        """Release idle caches, the longest unused first, while all together exceed the budget.

        Without one a scheduler takes what is free: then no other keeps more than it needs.
        """
        for other in list(self._schedulers.values()):
            if sum(each.cache_bytes for each in self._schedulers.values()) <= self._budget(scheduler):
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
    if request.stop and (not scheduler.can_decode or not all(request.stop)):
        raise ValueError("stop strings must not be empty, and need a decoder for these weights")
