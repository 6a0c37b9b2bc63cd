"""All sampling from one set of weights, or from several that can share a batch: cache, queue, and the batch that is
decoded together."""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import structlog
import torch

from learnloop_service.training.engine.memory import downloading, is_out_of_memory, uploaded
from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.cache_slots import Match
from learnloop_service.training.engine.sampling.figures import Counts, SamplingFigures
from learnloop_service.training.engine.sampling.gathering import Gathering
from learnloop_service.training.engine.sampling.masks import wait_for
from learnloop_service.training.engine.sampling.requests import NonFiniteLogits, OutOfMemory, Sample
from learnloop_service.training.engine.sampling.rows import Rows
from learnloop_service.training.engine.sampling.sample_tokens import Allowed, sample_tokens, uniforms
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, round_up
from learnloop_service.training.engine.weights.kv_cache import Piece
from learnloop_service.training.engine.weights.paged_cache import PAGE, OutOfPages, PagedCache, pages_of
from learnloop_service.training.engine.weights.weights import Batchable, Weights

log = structlog.get_logger(__name__)

PREFILL_CHUNK = 256
"""Prompt tokens in one forward pass on a CPU."""
PREFILL_FLOPS = 2e10
"""Approximate prefill of one step before the batch continues: a fraction of a second on one core."""
PACKED_PREFILL = 8192
"""Prompt tokens in one forward pass where rows are packed: enough to fill a GPU."""
IDLE_PASSES = 4
"""Number of passes in a row while no conversation is being decoded, so that those that arrive together continue
together."""
PAGED_REPLY = 2048
"""Tokens of a reply for which pages are set aside before it begins."""
SHARED = 32
"""Tokens that a prompt must have in common with another, to wait for them instead of computing them too."""

_Counts = int | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Member:
    """Weights that requests name by a key."""

    weights: Weights
    decode: Callable[[Sequence[int]], str] | None
    number: int
    """Of the owner of cache rows: what other weights have computed is of no use to these."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A decode step that was asked for before it was known whose replies go on: the requests that it is for, and which
    of its logits [M, vocab] are theirs, on whatever rows they are by now."""

    requests: dict[Request, int]
    logits: torch.Tensor


class Scheduler:
    """Driven by `step`. A conversation keeps its row when its reply is done, until the row is needed."""

    def __init__(
        self,
        key: str,
        weights: Weights,
        slots: int,
        cache_bytes: int | None,
        decode: Callable[[Sequence[int]], str] | None,
        counts: Counts,
    ) -> None:
        """`cache_bytes` bounds the cache (None: CACHE_BYTES, or on a GPU half of the memory that is free when it is
        made); `counts` is counted on; the others as in `add`."""
        self._members: dict[str, _Member] = {}
        self._numbers = itertools.count()
        self.add(key, weights, decode)
        self._counts = counts
        self._waiting: deque[Request] = deque()
        self._filling: list[Request] = []
        self._active: dict[int, Request] = {}
        self._ahead: _Ahead | None = None
        self._gathering, self._gathers = Gathering(), False
        self._rows = Rows(slots, cache_bytes)
        self._chunk, self._together = PREFILL_CHUNK, weights.prefilled_together
        self._prefill_tokens = int(min(max(PREFILL_FLOPS / (2 * weights.parameters), PREFILL_CHUNK), 4096))
        if weights.supports_packing:
            self._chunk, self._together = PACKED_PREFILL, slots
            # Of a model in stages each GPU then has a pass to work on.
            self._prefill_tokens = PACKED_PREFILL * max(len(weights.kv.stages), 1)

    @property
    def weights(self) -> Weights:
        """Any of them: they differ in their adapters only."""
        return next(iter(self._members.values())).weights

    def weights_of(self, key: str) -> Weights:
        """What the key stands for."""
        return self._members[key].weights

    def add(self, key: str, weights: Weights, decode: Callable[[Sequence[int]], str] | None) -> None:
        """Sample requests for `key` from these weights too, which can share a batch with those that are here. `decode`
        turns token ids into text."""
        self._members[key] = _Member(weights, decode, next(self._numbers))

    def rename(self, key: str, new: str) -> None:
        """Move idle weights, which were changed in place, to another key."""
        self._members[new] = member = self._members.pop(key)
        self._rows.forget_all_of(member.number)

    def remove(self, key: str, reason: Exception) -> None:
        """End all requests for a key, and forget its conversations."""
        for request in self._requests():
            if request.params.weights_key == key:
                self._fail(request, reason)
        self._rows.forget_all_of(self._members.pop(key).number)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._active or self._filling)

    @property
    def cache_bytes(self) -> int:
        """What the cache may come to take."""
        return self._rows.bytes

    @property
    def load(self) -> SamplingFigures:
        """Its conversations and its cache; all its other figures are 0."""
        waiting = len(self._waiting) + len(self._filling)
        return SamplingFigures(
            len(self._active), waiting, self._rows.tokens, self._rows.capacity_tokens, self._rows.bytes
        )

    def can_decode(self, key: str) -> bool:
        """Whether stop strings can be looked for."""
        return self._members[key].decode is not None

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def cancel(self, number: int, reason: Exception) -> bool:
        """End the request of that number; False if it is not here."""
        for request in self._requests():
            if request.number == number:
                self._fail(request, reason)
                return True
        return False

    def take_cache(self, other: "Scheduler") -> None:
        """Have the memory of another scheduler's cache, whose conversations are forgotten. Both must be idle."""
        self._rows.take(other._rows)
        other.release()

    def release(self) -> None:
        """Forget all conversations and give back the cache's memory. The scheduler must be idle."""
        self._ahead = None
        self._rows.release()

    def step(self) -> None:
        """Prefill what waits, within a budget, then decode one token for every conversation that is ready. On a GPU
        what waits may do so for some steps, until there is more of it."""
        self._gathers = self.weights.supports_packing and not self._filling and self._gather()
        if not self._gathers:
            self._prefill()
        if self._ready_rows():
            try:
                self._decode()
            except Exception as error:
                if not is_out_of_memory(error) or not self._preempt_half():
                    for request in list(self._active.values()):
                        self._fail(request, _named(error))
        elif not self._filling:
            wait_for([each.masks for each in self._requests() if each.masks and each.late], FIRST_COMPLETED)
        self._compact()

    # Prefill: all known tokens but the last, which the next decode step feeds.

    def _gather(self) -> bool:
        """Whether to wait for more prompts before the next pass."""
        prompts = min(sum(not each.late for each in self._waiting), self._rows.most - len(self._active))
        return self._gathering.goes_on(prompts, len(self._ready_rows()))

    def _prefill(self) -> None:
        budget = self._prefill_tokens
        if self.weights.supports_packing and not self._active:
            budget *= IDLE_PASSES
        while budget > 0 and self._admit():
            batch = list(self._filling)
            try:
                budget -= self._fill(budget)
            except Exception as error:
                self._give_up(batch, error)
                return

    def _admit(self) -> bool:
        """Give rows to waiting requests, as many as are prefilled together; whether there is anything to prefill."""
        for request in self._in_turn():
            if request.late:
                continue
            if len(self._filling) >= self._together:
                break
            if len(self._filling) + len(self._active) >= self._rows.most and not self._make_way(request):
                break
            try:
                match = self._match(request)
                if self._is_being_filled(request, match):
                    continue
                while not self._place(request, match):
                    if not self._make_way(request):
                        return bool(self._filling)
            except Exception as error:
                self._give_up([request], error)
                return bool(self._filling)
            self._waiting.remove(request)
            self._filling.append(request)
            if request.masks is not None:
                request.masks.begin()
        return bool(self._filling)

    def _make_way(self, request: Request) -> bool:
        """Preempt a conversation for a request that can run now: one that waits for its mask, or one of a call that has
        more than its share. False if there is none."""
        other = next((each for each in self._active.values() if each.late), None) or self._beyond_its_share(request)
        if other is not None:
            self._preempt([other])
        return other is not None

    def _beyond_its_share(self, request: Request) -> Request | None:
        """Return the newest conversation of the call with the most, if the request's call would still have fewer."""
        running = [*self._active.values(), *self._filling]
        counts = Counter(each.call for each in running)
        if max(counts.values(), default=0) <= counts[request.call] + 1:
            return None
        return max(running, key=lambda each: (counts[each.call], each.number))

    def _in_turn(self) -> list[Request]:
        """Return the waiting requests in the order of admission: weights take turns, and so do the calls that sample
        from the same weights. None waits for all requests of another."""
        running = [*self._active.values(), *self._filling]
        by_call = _taking_turns(self._waiting, [each.call for each in running], lambda each: each.call)
        keys = [each.params.weights_key for each in running]
        return _taking_turns(by_call, keys, lambda each: each.params.weights_key)

    def _match(self, request: Request) -> Match:
        """What there is of its prompt, in a cache that has room for it."""
        known = request.known()
        self._reserve(len(known))
        return self._rows.slots.match(known[:-1], self._member(request).number)

    def _is_being_filled(self, request: Request, match: Match) -> bool:
        """Whether more of its prompt is about to be computed for another request than there is already."""
        known, more = request.known()[:-1], match.tokens + SHARED + 1
        return len(known) >= more and any(
            len(other.known()) > more and (other.known()[:more] == known[:more]).all()
            for other in self._filling
            if other.params.weights_key == request.params.weights_key
        )

    def _give_up(self, batch: Sequence[Request], error: Exception) -> None:
        """Fail what could not be prefilled, or queue it again where preempting others frees memory."""
        for request in batch:
            if request in self._filling:
                self._filling.remove(request)
            self._unplace(request)
        waits = is_out_of_memory(error) and self._preempt_half()
        for request in reversed(batch):
            if not waits:
                self._fail(request, _named(error))
            elif request not in self._waiting:
                self._waiting.appendleft(request)

    def _place(self, request: Request, match: Match) -> bool:
        """Give the request a row that holds what is there of its prompt; False if it must wait for one."""
        cache = self._rows.cache
        if isinstance(cache, PagedCache) and not self._has_pages(cache, request, match):
            return False
        row = self._rows.place(match, self._member(request).number)
        if row is None:
            return False
        request.row = row
        if request.cached_tokens is None:
            request.cached_tokens = match.tokens
            self._counts.reused_tokens += match.tokens
        return True

    def _fill(self, budget: int) -> int:
        """Prefill one piece of each placed request; the number of tokens that it took, at least 1."""
        assert self._rows.cache is not None
        pieces: list[Piece] = []
        whose: list[Weights] = []
        left = min(self._chunk, budget) if self.weights.supports_packing else self._chunk
        for request in self._filling:
            start = int(self._rows.slots.lengths[request.row])
            ids = request.known()[start:-1][:left]
            if len(ids):
                self._rows.hold(request.row, start, start + len(ids))
                pieces.append(Piece(request.row, start, ids))
                whose.append(self._member(request).weights)
                left -= len(ids)
        started = time.perf_counter()
        if pieces and len(self._members) == 1:
            self.weights.prefill(self._rows.cache, pieces)
        elif pieces:
            cast(Batchable, self.weights).prefill_each(self._rows.cache, pieces, whose)
        if pieces:
            self._gathering.passed(time.perf_counter() - started)
        for piece in pieces:
            stop = piece.start + len(piece.ids)
            self._rows.slots.tokens[piece.row, piece.start : stop] = piece.ids
            self._rows.slots.lengths[piece.row] = stop
            self._counts.prefilled_tokens += len(piece.ids)
        for request in list(self._filling):
            known = request.known()
            if self._rows.slots.lengths[request.row] == len(known) - 1:
                self._filling.remove(request)
                self._active[request.row] = request
                self._rows.state.start(request.row, request, int(known[-1]))
        return max(sum(len(piece.ids) for piece in pieces), 1)

    # Decode

    def _decode(self) -> None:
        found = self._decoded_ahead() or self._decoded_now()
        if found is None:
            return
        active, logits, allowed = self._masked(*found)
        if not len(active):
            return
        rows, state = self._rows.slots, self._rows.state
        uniform = uniforms(state.seeds[active], state.produced[active].astype(np.uint64))
        cuts = state.top_p[active], state.top_k[active], state.min_p[active]
        chosen, logprobs = sample_tokens(logits, state.temperature[active], *cuts, uniform, allowed)
        sampled = downloading(chosen, logprobs.gather(1, chosen[:, None])[:, 0])
        self._decode_ahead(active, chosen)
        ids, values = sampled()

        rows.tokens[active, rows.lengths[active]] = state.feed[active]
        rows.lengths[active] += 1
        state.feed[active] = ids
        state.ids[active, state.produced[active]] = ids
        state.logprobs[active, state.produced[active]] = values
        state.produced[active] += 1
        self._counts.decode_steps += 1
        self._counts.sampled_tokens += len(active)
        stopped = (state.stops[active] == ids[:, None]).any(axis=1)
        over = stopped | (state.produced[active] >= state.limits[active]) | ~np.isfinite(values) | state.watched[active]
        for index in np.flatnonzero(over):
            self._attend_to(int(active[index]), int(ids[index]), logprobs[index], bool(stopped[index]))

    def _decoded_now(self) -> tuple[npt.NDArray[np.int64], torch.Tensor] | None:
        """The rows that are decoded now, and their logits after the next token; None if there are none."""
        rows, state = self._rows.slots, self._rows.state
        if isinstance(self._rows.cache, PagedCache):
            self._hold_next(self._rows.cache)
        active = np.array(self._ready_rows(), dtype=np.int64)
        if not len(active):  # holding pages or making a longer cache preempted them
            return None
        longest = int(rows.lengths[active].max()) + 1
        self._reserve(longest)
        if rows is not self._rows.slots:  # the cache was made anew
            return self._decoded_now()
        count = min(round_up(int(active[-1]) + 1, self.weights.pad_to_multiple_of), len(rows.lengths))
        places = rows.lengths[:count]
        if isinstance(self._rows.cache, PagedCache):
            places = _among(count, active, rows.lengths[active])
        feed = uploaded(state.feed[:count], self.weights.kv.device)
        return active, self._of_rows(active, self._logits(feed, places, longest))

    def _logits(self, feed: torch.Tensor, places: npt.NDArray[np.int64], longest: int) -> torch.Tensor:
        """Logits [M, vocab] of the first M rows after one token for each, `feed` ([M]), at `places` ([M]; in a
        PagedCache -1: none), of which the longest row then has `longest`."""
        positions = uploaded(places, self.weights.kv.device)
        if len(self._members) == 1:
            return self.weights.decode(self._rows.cache, feed, positions, round_up(longest, KEY_MULTIPLE))
        whose = [self._member(self._active[row]).weights if row in self._active else None for row in range(len(places))]
        return cast(Batchable, self.weights).decode_each(self._rows.cache, feed, positions, whose)

    def _of_rows(self, rows: npt.NDArray[np.int64], logits: torch.Tensor) -> torch.Tensor:
        return logits if np.array_equal(rows, np.arange(len(logits))) else logits[uploaded(rows, logits.device)]

    def _decode_ahead(self, active: npt.NDArray[np.int64], chosen: torch.Tensor) -> None:
        """Have a GPU begin the next step of all active rows, which just sampled `chosen`, while it is seen here whose
        replies ended with it. Not where others are about to join them, or pages are short."""
        cache, rows, state = self._rows.cache, self._rows.slots, self._rows.state
        joined = self._filling or (self._waiting and not self._gathers) or len(active) < len(self._ready_rows())
        if not isinstance(cache, PagedCache) or joined:
            return
        goes_on = state.produced[active] + 1 < state.limits[active]
        going, places = active[goes_on], rows.lengths[active[goes_on]] + 1
        if not len(going) or int(places.max()) + 1 >= cache.length:
            return
        unready = cache.unready(going, places)
        if len(unready) > cache.free:
            return
        for row in unready.tolist():
            cache.hold(row, int(rows.lengths[row]) + 1, int(rows.lengths[row]) + 2)
        count = round_up(int(active[-1]) + 1, self.weights.pad_to_multiple_of)
        feed = chosen
        if len(active) < count:
            feed = torch.zeros(count, dtype=chosen.dtype, device=chosen.device)
            feed[uploaded(active, chosen.device)] = chosen
        logits = self._logits(feed, _among(count, going, places), int(places.max()) + 1)
        self._ahead = _Ahead({self._active[row]: row for row in going.tolist()}, logits)

    def _decoded_ahead(self) -> tuple[npt.NDArray[np.int64], torch.Tensor] | None:
        """The rows of a step that was begun already whose replies go on, and their logits; None if there are none."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not ahead.requests:
            return None
        going = sorted((request.row, place) for request, place in ahead.requests.items())
        active, places = np.array(going, dtype=np.int64).T
        return active, self._of_rows(places, ahead.logits)

    def _ready_rows(self) -> list[int]:
        """The rows of the conversations that are decoded now: all that do not wait for a mask, in order."""
        return sorted(row for row, request in self._active.items() if not request.late)

    def _masked(
        self, active: npt.NDArray[np.int64], logits: torch.Tensor
    ) -> tuple[npt.NDArray[np.int64], torch.Tensor, Allowed | None]:
        """Those of the rows that can be sampled now, their logits, and the tokens that grammars let through.

        Leaves out rows whose masks are late: the next step in which they take part computes the same logits again.
        Requests whose grammars failed end here.
        """
        constrained = np.flatnonzero(self._rows.state.constrained[active])
        if not len(constrained):
            return active, logits, None
        requests = {int(place): self._active[int(active[place])] for place in constrained}
        wait_for([request.masks for request in requests.values() if request.masks])
        bits = {}
        for place, request in requests.items():
            try:
                mask = request.masks.allowed() if request.masks else None
            except Exception as error:
                self._fail(request, error)
            else:
                if mask is not None:
                    bits[place] = mask
        kept = np.array([row in self._active for row in active.tolist()])
        kept[[place for place in requests if place not in bits]] = False
        places = np.flatnonzero(kept)
        allowed = Allowed(np.searchsorted(places, list(bits)), np.stack(list(bits.values()))) if bits else None
        return active[kept], self._of_rows(places, logits), allowed

    def _attend_to(self, row: int, token: int, logprobs: torch.Tensor, stopped: bool) -> None:
        """What is done for single rows after a step: report the token, and see whether the reply ends with it."""
        request, state = self._active.get(row), self._rows.state
        if request is None:
            return None  # another request's listener cancelled it
        params, produced = request.params, int(state.produced[row])
        value = float(state.logprobs[row, produced - 1])
        if not np.isfinite(value):
            assert self._rows.cache is not None
            self._rows.cache.clear(row)
            self._rows.forget(row)
            return self._fail(request, NonFiniteLogits("the weights give log-probabilities that are not finite"))
        if params.top_logprobs:
            best = logprobs.topk(min(params.top_logprobs, len(logprobs)))
            request.top.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        if request.on_token is not None:
            request.on_token(token, value)
        if self._active.get(row) is not request:
            return None  # on_token cancelled it
        stop_text = self._stop_text(request, state.ids[row, :produced])
        if not stopped and stop_text is None and produced < request.max_tokens:
            if request.masks is not None:
                request.masks.take(token)
            return None
        ids, values = state.ids[row, :produced].tolist(), state.logprobs[row, :produced].tolist()
        self._unplace(request)
        request.done(
            Sample(
                ids=ids,
                logprobs=values,
                finish_reason="length" if not stopped and stop_text is None else "stop",
                seed=request.seed,
                prompt_tokens=len(params.prompt),
                cached_tokens=request.cached_tokens or 0,
                top=request.top,
                stop_text=stop_text,
            )
        )
        return None

    def _stop_text(self, request: Request, ids: npt.NDArray[np.int64]) -> str | None:
        """The stop string that the last token completed. Each token is at least one byte, so few need decoding."""
        stops, decode = request.params.stop, self._member(request).decode
        if not stops or decode is None:
            return None
        longest = max(len(stop.encode()) for stop in stops)
        text = decode(ids[-(longest + 4) :].tolist())
        return next((stop for stop in stops if stop in text), None)

    # Rows and memory

    def _reserve(self, tokens: int) -> None:
        """Have rows of more than `tokens` tokens."""
        if moved := self._rows.reserve(tokens, self.weights):
            self._active = {moved[row]: request for row, request in self._active.items()}
            for request in (*self._active.values(), *self._filling):
                request.row = moved[request.row]

    def _has_pages(self, cache: PagedCache, request: Request, match: Match) -> bool:
        """Whether pages for the request's reply are left, with those set aside that running ones may come to need.

        Raises OutOfMemory if there are too few though nothing runs.
        """
        needed = pages_of(_expected_of(request)) - match.tokens // PAGE
        if not self._active and not self._filling:
            if len(request.known()) > cache.length:
                raise OutOfMemory(f"memory holds the keys and values of {cache.length} tokens")
            return True
        state, active = self._rows.state, np.fromiter(self._active, dtype=np.int64, count=len(self._active))
        filling = np.array([_expected_of(each) for each in self._filling], dtype=np.int64)
        expected = np.concatenate(
            [_expected(state.prompts[active], state.produced[active], state.limits[active]), filling]
        )
        if pages_of(_expected_of(request)) + int((-(-expected // PAGE)).sum()) <= cache.pages:
            return True  # even if nothing is shared
        rows = np.array([*active, *(each.row for each in self._filling)])
        needed += cache.missing(rows, self._rows.slots.lengths[rows], expected)
        return needed <= cache.room(rows.tolist(), match.row, match.tokens)

    def _hold_next(self, cache: PagedCache) -> None:
        """Have room for the next token of every active conversation; the youngest wait where there is too little."""
        active = np.fromiter(self._active, dtype=np.int64, count=len(self._active))
        for row in cache.unready(active, self._rows.slots.lengths[active]).tolist():
            while row in self._active:
                length = int(self._rows.slots.lengths[row])
                try:
                    self._rows.hold(row, length, length + 1)
                    break
                except OutOfPages as error:
                    if len(self._active) == 1:
                        raise
                    youngest = max(self._active.values(), key=lambda request: request.number)
                    log.warning("sampling out of memory", at_once=len(self._active) - 1, reason=str(error))
                    self._preempt([youngest])

    def _preempt_half(self) -> bool:
        """Out of memory: preempt the younger half of the batch and decode fewer together from now on. False if
        there is no half."""
        batch = sorted(self._active.values(), key=lambda request: request.number)
        if len(batch) < 2:
            return False
        most = len(batch) // 2
        log.warning("sampling out of memory", at_once=most)
        self._preempt(batch[most:])
        self._rows.decode_at_most(most)
        self._compact()
        return True

    def _preempt(self, requests: Sequence[Request]) -> None:
        """Put running requests back at the head of the queue, with what they have sampled."""
        for request in reversed(requests):
            if request in self._filling:
                self._filling.remove(request)
            else:
                produced = int(self._rows.state.produced[request.row])
                request.ids = self._rows.state.ids[request.row, :produced].tolist()
                request.logprobs = self._rows.state.logprobs[request.row, :produced].tolist()
            self._unplace(request)
            self._waiting.appendleft(request)

    def _compact(self) -> None:
        """Decode as few rows as hold conversations."""
        for before, row in self._rows.compact():
            request = self._active.pop(before, None)
            if request is not None:
                self._active[row] = request
            else:
                request = next(request for request in self._filling if request.row == before)
            request.row = row

    def _member(self, request: Request) -> _Member:
        return self._members[request.params.weights_key]

    def _requests(self) -> list[Request]:
        return [*self._active.values(), *self._filling, *self._waiting]

    def _unplace(self, request: Request) -> None:
        """Take the request off its row; the row keeps the conversation."""
        if request.row >= 0:
            self._active.pop(request.row, None)
            if self._ahead:  # should it come back, to whichever pages, it is to be computed again
                self._ahead.requests.pop(request, None)
            self._rows.leave(request.row)
            request.row = -1

    def _fail(self, request: Request, reason: Exception) -> None:
        self._unplace(request)
        if request in self._filling:
            self._filling.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        request.done(reason)


def _expected(prompts: _Counts, produced: _Counts, limits: _Counts) -> npt.NDArray[np.int64]:
    """Return how many tokens requests may come to have, as far as pages are set aside for them."""
    return prompts + produced + np.minimum(limits - produced, PAGED_REPLY)


def _expected_of(request: Request) -> int:
    """Return the same for a request that is not decoded now."""
    return int(_expected(len(request.params.prompt), len(request.ids), request.max_tokens))


def _taking_turns(
    waiting: Iterable[Request], running: Iterable[str], owner_of: Callable[[Request], str]
) -> list[Request]:
    """Order requests so that their owners take turns. `running` has the owner of each running request; those with the
    fewest come first."""
    ahead = Counter(running)
    turns: list[tuple[int, Request]] = []
    for request in waiting:
        owner = owner_of(request)
        turns.append((ahead[owner], request))
        ahead[owner] += 1
    return [request for _, request in sorted(turns, key=lambda each: each[0])]


def _among(count: int, rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places [count] of these rows, among others that are left alone: what they may share is not written."""
    found = np.full(count, -1, dtype=np.int64)
    found[rows] = places
    return found


def _named(error: Exception) -> Exception:
    return OutOfMemory(f"out of memory: {error}") if is_out_of_memory(error) else error
