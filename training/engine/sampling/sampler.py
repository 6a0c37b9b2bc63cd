"""Samples replies for many conversations concurrently, from one or more sets of weights.

The owner of torch calls `step` while the sampler is `busy`. The sampler's only threads compute the masks of constrained
replies.
"""

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.figures import Counts, SamplingFigures, total
from learnloop_service.training.engine.sampling.masks import MaskThreads, ReplyMasks
from learnloop_service.training.engine.sampling.requests import (
    ContextTooLong,
    Done,
    OnToken,
    SampleCancelled,
    SampleRequest,
    UnknownWeights,
)
from learnloop_service.training.engine.sampling.rows import CACHE_BYTES
from learnloop_service.training.engine.sampling.scheduler import SamplingScheduler
from learnloop_service.training.engine.weights.weights import Batchable, Weights


class Sampler:
    """A queue of requests over a batch of conversations for each set of weights. Sets that can share a batch
    (Batchable) do.

    A request with a seed gives the same tokens and bit-equal log-probabilities whatever else is sampled, in whatever
    order, and whatever the cache holds (with one thread on a CPU; see attention.py).
    """

    def __init__(self, slots: int = 64, cache_bytes: int | None = None) -> None:
        """`slots` conversations are decoded together for each set of weights, or for all that share a batch. Each of
        these in use can fill `cache_bytes`, where None selects a size that suits the device (see SamplingScheduler)."""
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._slots = slots
        self._cache_bytes = cache_bytes
        self._counts = Counts()
        self._mask_threads = MaskThreads()
        self._schedulers: list[SamplingScheduler] = []
        """Schedulers, with the most recently used one last."""
        self._scheduler_of: dict[str, SamplingScheduler] = {}
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> bool:
        """Whether `step` has work to do."""
        return any(scheduler.busy for scheduler in self._schedulers)

    @property
    def figures(self) -> SamplingFigures:
        """Figures over all weights. Can be read from any thread."""
        return replace(total(scheduler.load for scheduler in list(self._schedulers)), **asdict(self._counts))

    def set_weights(
        self,
        key: str,
        weights: Weights,
        decode: Callable[[Sequence[int]], str] | None = None,
        successor_of: str | None = None,
    ) -> None:
        """Sample requests for `key` from `weights`, which replace its previous ones.

        `decode` turns token ids into text, which requests with stop strings need. Weights that cannot share a batch
        with those of the key `successor_of` take over the memory of their cache if they are idle.
        """
        self.drop_weights(key)
        shared = self._shared(weights)
        if shared is not None:
            shared.add(key, weights, decode)
            self._scheduler_of[key] = shared
            return
        scheduler = SamplingScheduler(key, weights, self._slots, self._cache_bytes, decode, self._counts)
        self._schedulers.append(scheduler)
        self._scheduler_of[key] = scheduler
        before = self._scheduler_of.get(successor_of) if successor_of else None
        if before is not None and not before.busy and before.weights.kv == weights.kv:
            scheduler.take_cache(before)

    def _shared(self, weights: Weights) -> SamplingScheduler | None:
        """Return the scheduler of weights with which these can share a batch, or None."""
        if not isinstance(weights, Batchable):
            return None
        for scheduler in self._schedulers:
            there = scheduler.weights
            if isinstance(there, Batchable) and there.batched_with == weights.batched_with:
                return scheduler
        return None

    def drop_weights(self, key: str) -> None:
        """Drop the key's weights. Its unfinished requests end with UnknownWeights."""
        scheduler = self._scheduler_of.pop(key, None)
        if scheduler is None:
            return
        scheduler.remove(key, UnknownWeights(key))
        if scheduler not in self._scheduler_of.values():
            self._schedulers.remove(scheduler)
            scheduler.release()

    def weights(self, key: str) -> Weights | None:
        """Return the weights of a key."""
        scheduler = self._scheduler_of.get(key)
        return scheduler.weights_of(key) if scheduler else None

    def rename(self, key: str, new: str) -> None:
        """Move an idle key's weights, which were changed in place, to a new key that has nothing in the cache."""
        self._scheduler_of[new] = scheduler = self._scheduler_of.pop(key)
        scheduler.rename(key, new)

    def release_idle(self) -> None:
        """Release the caches that are not in use."""
        for scheduler in self._schedulers:
            if not scheduler.busy:
                scheduler.release()

    def submit(self, request: SampleRequest, on_token: OnToken | None, on_done: Done) -> int:
        """Queue a request and return its number, with which it can be cancelled.

        `on_token(id, logprob)` is called for each token, and `on_done` once with the sample or the error. Both are
        called in `step`, except that ContextTooLong and UnknownWeights are reported immediately, and must not raise.
        Raises ValueError for an invalid request.
        """
        number = next(self._numbers)
        scheduler = self._scheduler_of.get(request.weights_key)
        if scheduler is None:
            on_done(UnknownWeights(request.weights_key))
            return number
        _check(request, scheduler)
        room = scheduler.weights.context - len(request.prompt)
        if room < 1:
            on_done(ContextTooLong(len(request.prompt), scheduler.weights.context))
            return number
        seed = secrets.randbits(53) if request.seed is None else request.seed
        masks = ReplyMasks(request.grammar, self._mask_threads, request.grammar_s) if request.grammar else None
        scheduler.submit(Request(number, request, seed, min(request.max_tokens, room), on_token, on_done, masks))
        return number

    def cancel(self, number: int) -> None:
        """End a request with SampleCancelled. Does nothing if it is finished."""
        for scheduler in self._schedulers:
            if scheduler.cancel(number, SampleCancelled("the request was cancelled")):
                return

    def step(self) -> None:
        """For each set of weights with requests, prefill prompts and decode one token for each conversation. The rows
        of finished requests are filled again at the next step."""
        for scheduler in list(self._schedulers):
            if scheduler.busy and scheduler in self._schedulers:
                self._schedulers.remove(scheduler)
                self._schedulers.append(scheduler)
                self._make_room(scheduler)
                scheduler.step()

    def _make_room(self, scheduler: SamplingScheduler) -> None:
        """Release idle caches, least recently used first, while the total exceeds the budget.

        Without a budget, the size of a new cache on a GPU depends on the free memory, so all idle caches are released.
        """
        for other in list(self._schedulers):
            if sum(holder.cache_bytes for holder in self._schedulers) <= self._budget(scheduler):
                return
            if other is not scheduler and not other.busy:
                other.release()

    def _budget(self, scheduler: SamplingScheduler) -> int:
        if self._cache_bytes is None and scheduler.weights.supports_packing:
            return 0
        return self._cache_bytes or CACHE_BYTES


def _check(request: SampleRequest, scheduler: SamplingScheduler) -> None:
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
