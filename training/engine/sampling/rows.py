"""The rows of a cache: which conversation each holds, how many and how long they are, and which one a request gets."""

from collections.abc import Iterator, Mapping

import numpy as np

from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.sampling.batch import BatchState
from learnloop_service.training.engine.sampling.cache_slots import CacheSlots, Match
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, MIN_ROWS, round_up
from learnloop_service.training.engine.weights.kv_cache import KVCache
from learnloop_service.training.engine.weights.paged_cache import PAGE, OutOfPages, PagedCache, pages_of
from learnloop_service.training.engine.weights.weights import Weights

FIRST_LENGTH = 256
CACHE_BYTES = 1 << 29
PAGED_TOKENS = 8192
"""Most tokens to allocate pages for, for each of the conversations that are decoded together."""


class Rows:
    """A cache and the bookkeeping of its rows. Both are created when they are first needed, and again when rows must be
    longer. The first rows are decoded together; the others only keep conversations for their next turn."""

    def __init__(self, most: int, cache_bytes: int | None) -> None:
        """`most` is the number of conversations that are decoded together. `cache_bytes` limits the cache; None takes
        CACHE_BYTES, or on a GPU half of the memory that is free when the cache is created."""
        self.cache: KVCache | PagedCache | None = None
        self.slots = CacheSlots(0, 0, 0)
        self.state = BatchState(0, 0)
        self.most = most
        self._cache_bytes = cache_bytes

    @property
    def bytes(self) -> int:
        """Memory that the cache can come to take, in bytes."""
        return self.cache.bytes if self.cache else 0

    @property
    def tokens(self) -> int:
        """Number of tokens whose keys and values the cache holds, in whole pages if it has pages. Pages that rows share
        count once."""
        return self.cache.tokens_in(self.slots.lengths) if self.cache else 0

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that the cache has room for."""
        return self.cache.bytes // self.cache.shape.bytes_per_token if self.cache else 0

    def take(self, other: "Rows") -> None:
        """Take over the cache of other rows, whose conversations are forgotten."""
        self.cache, self.slots, self.state = other.cache, other.slots, other.state
        other.release()
        for row in range(len(self.slots.lengths)):
            self.forget(row)
        self.slots = CacheSlots(len(self.slots.lengths), self.slots.decoding, self.slots.tokens.shape[1])

    def release(self) -> None:
        """Forget all conversations and free the cache's memory."""
        self.cache = None
        self.slots = CacheSlots(0, 0, 0)
        self.state = BatchState(0, 0)

    def decode_at_most(self, most: int) -> None:
        """Decode fewer conversations together from now on."""
        self.most = most
        self.slots.decoding = min(len(self.slots.lengths), round_up(most, MIN_ROWS))

    # How many rows, and how long

    def reserve(self, tokens: int, weights: Weights) -> Mapping[int, int]:
        """Make sure that each row has room for more than `tokens` tokens. Under a tight budget fewer rows remain, but
        all busy ones. Return the new number of each remaining row by its old one, if the rows were created again."""
        cache = self.cache
        if cache is not None and tokens < cache.length:
            return {}
        if weights.supports_packing:
            if cache is None:
                self._make_pages(weights)
            return {}
        most = round_up(weights.context + 1, KEY_MULTIPLE)
        length = min(most, max(FIRST_LENGTH, round_up(tokens + 1, FIRST_LENGTH), 2 * cache.length if cache else 0))
        affordable = (self._cache_bytes or CACHE_BYTES) // (length * weights.kv.bytes_per_token)
        busy = round_up(max(int(self.slots.busy.sum()), 1), MIN_ROWS)
        rows = max(min(2 * round_up(self.most, MIN_ROWS), affordable // MIN_ROWS * MIN_ROWS), busy)
        try:
            return self._remake(rows, length, weights)
        except Exception as error:
            if not is_out_of_memory(error) or rows == busy:
                raise
            return self._remake(busy, length, weights)

    def _make_pages(self, weights: Weights) -> None:
        """Create rows as long as the context, or as memory allows, that take only the pages that they fill. Half of
        them only keep conversations."""
        shape, length = weights.kv, weights.context + 1
        whole, slots = pages_of(length), round_up(self.most, weights.pad_to_multiple_of)
        budget = self._cache_bytes or shape.free_bytes() // 2
        most = max(slots * pages_of(min(length, PAGED_TOKENS)), whole)
        pages = min(budget // (PAGE * shape.bytes_per_token), most)
        if self._cache_bytes is not None:
            pages = max(pages, whole)  # one conversation of full length must fit
        self.cache = PagedCache(shape, 2 * slots, min(length, max(pages, 1) * PAGE), max(pages, 1))
        self.slots, self.state = CacheSlots(2 * slots, slots, self.cache.length), BatchState(slots, length)

    def _remake(self, count: int, length: int, weights: Weights) -> Mapping[int, int]:
        assert not isinstance(self.cache, PagedCache)
        old = self.slots
        keep = np.arange(len(old.lengths)) if count >= len(old.lengths) else old.order()[:count]
        slots, state = CacheSlots(count, min(count, round_up(self.most, MIN_ROWS)), length), BatchState(count, length)
        if self.cache is None:
            self.cache = KVCache(weights.kv, count, length)
        else:
            self.cache = self.cache.resized(count, length, [(int(row), int(old.lengths[row])) for row in keep])
        slots.take(old, keep)
        state.take(self.state, keep)
        self.slots, self.state = slots, state
        return {int(row): target for target, row in enumerate(keep)}

    # Which row a conversation gets

    def assign(self, match: Match, owner: int) -> int | None:
        """Take a row for a prompt and put the matched beginning of the prompt into it. Return None if the prompt must
        wait for a row."""
        assert self.cache is not None
        slots = self.slots
        continued = not slots.busy[match.row] and match.tokens == slots.lengths[match.row]
        if match.tokens and continued and match.row < slots.decoding:
            target = match.row
        else:
            candidate = slots.eviction_candidate(spare=match.row)
            if candidate is None:
                if slots.busy[match.row] or match.row >= slots.decoding:
                    return None
                candidate = match.row  # the only idle row, which keeps the shared beginning
            target = candidate
            if target != match.row:
                self._stash(target, spare=match.row)
                self.cache.copy(match.row, target, match.tokens)
                slots.move(match.row, target, match.tokens)
                if continued:
                    self.forget(match.row)  # its next turn is this one, in a row that can be decoded
            slots.lengths[target] = match.tokens
        slots.owners[target] = owner
        slots.busy[target] = True
        slots.touch(target)
        return target

    def _stash(self, row: int, spare: int) -> None:
        """Copy the conversation of a row that is about to be overwritten to a row that only keeps conversations, in
        place of the least recently used one there."""
        length = int(self.slots.lengths[row])
        target = self.slots.eviction_candidate(stash=True, spare=spare)
        if target is not None and length:
            assert self.cache is not None
            self.cache.copy(row, target, length)
            self.slots.move(row, target, length)

    def leave(self, row: int) -> None:
        """Make a row available to other requests. It keeps its conversation until one of them takes it."""
        self.slots.busy[row] = False
        self.slots.touch(row)
        self.state.watched[row] = False

    def hold(self, row: int, start: int, stop: int) -> None:
        """Make room in a row for the tokens from `start` to `stop`. If pages are short, idle conversations are
        forgotten, the least recently used one first. Raises OutOfPages."""
        assert self.cache is not None
        while True:
            try:
                return self.cache.hold(row, start, stop)
            except OutOfPages:
                assert isinstance(self.cache, PagedCache)
                idle = self.slots.least_recently_used(self.cache.held > 0)
                if idle is None:
                    raise
                self.forget(idle)

    def forget(self, row: int) -> None:
        """Forget a row's conversation."""
        if self.cache is not None:
            self.cache.forget(row)
        self.slots.lengths[row] = 0

    def forget_all_of(self, owner: int) -> None:
        """Forget all conversations of an owner."""
        for row in np.flatnonzero(self.slots.owners == owner).tolist():
            self.forget(row)

    def compact(self) -> Iterator[tuple[int, int]]:
        """Move the last busy rows to idle ones before them while that makes the batch smaller by MIN_ROWS. Yield the
        old and the new number of each moved row."""
        busy = np.flatnonzero(self.slots.busy)
        while len(busy) and round_up(int(busy[-1]) + 1, MIN_ROWS) > round_up(len(busy), MIN_ROWS):
            last, hole = int(busy[-1]), int(np.flatnonzero(~self.slots.busy)[0])
            assert self.cache is not None
            self.cache.swap(last, hole, int(self.slots.lengths[[last, hole]].max()))
            self.slots.swap(last, hole)
            self.state.swap(last, hole)
            yield last, hole
            busy = np.flatnonzero(self.slots.busy)
