"""Gives waiting requests rows, in turn, and prefills their prompts."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.cache_slots import Match
from learnloop_service.training.engine.sampling.figures import Counts
from learnloop_service.training.engine.sampling.gathering import Gathering
from learnloop_service.training.engine.sampling.occupancy import Occupancy, explained
from learnloop_service.training.engine.sampling.requests import OutOfMemory
from learnloop_service.training.engine.weights.kv_cache import Piece
from learnloop_service.training.engine.weights.paged_cache import PAGE, PagedCache, pages_of
from learnloop_service.training.engine.weights.weights import Batchable, Weights

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
"""Number of tokens that a prompt must have in common with one that is being computed, to wait for it."""

_Tokens = int | npt.NDArray[np.int64]


class Admission:
    """Takes requests from the queue into the batch. All tokens of a request but the last are prefilled; the next decode
    step feeds the last."""

    def __init__(self, occupancy: Occupancy, slots: int, counts: Counts) -> None:
        self._occupancy, self._counts = occupancy, counts
        self._gathering = Gathering()
        weights = occupancy.weights
        self._chunk, self._together = PREFILL_CHUNK, weights.prefilled_together
        self._prefill_tokens = int(min(max(PREFILL_FLOPS / (2 * weights.parameters), PREFILL_CHUNK), 4096))
        if weights.supports_packing:
            self._chunk, self._together = PACKED_PREFILL, slots
            # If the model is in stages, each GPU then has a pass to work on.
            self._prefill_tokens = PACKED_PREFILL * max(len(weights.kv.stages), 1)

    @property
    def _weights(self) -> Weights:
        return self._occupancy.weights

    def step(self) -> None:
        """Prefill what waits, within a budget. On a GPU a few prompts can wait for others."""
        occupancy = self._occupancy
        occupancy.gathers = self._weights.supports_packing and not occupancy.filling and self._gather()
        if not occupancy.gathers:
            self._prefill()

    def _gather(self) -> bool:
        """Return whether to wait for more prompts before the next pass."""
        occupancy = self._occupancy
        startable = sum(not request.late for request in occupancy.waiting)
        prompts = min(startable, occupancy.rows.most - len(occupancy.active))
        return self._gathering.waits(prompts, len(occupancy.ready_rows()))

    def _prefill(self) -> None:
        budget = self._prefill_tokens
        if self._weights.supports_packing and not self._occupancy.active:
            budget *= IDLE_PASSES
        while budget > 0 and self._admit():
            batch = list(self._occupancy.filling)
            try:
                budget -= self._fill(budget)
            except Exception as error:
                self._give_up(batch, error)
                return

    def _admit(self) -> bool:
        """Give rows to as many waiting requests as are prefilled together. Returns whether there is one to prefill."""
        occupancy = self._occupancy
        for request in self._in_turn():
            if request.late:
                continue
            if len(occupancy.filling) >= self._together:
                break
            if len(occupancy.running()) >= occupancy.rows.most and not self._make_way(request):
                break
            try:
                match = self._match(request)
                if self._is_being_filled(request, match):
                    continue
                while not self._assign_row(request, match):
                    if not self._make_way(request):
                        return bool(occupancy.filling)
            except Exception as error:
                self._give_up([request], error)
                return bool(occupancy.filling)
            occupancy.waiting.remove(request)
            occupancy.filling.append(request)
            if request.masks is not None:
                request.masks.begin()
        return bool(occupancy.filling)

    def _make_way(self, request: Request) -> bool:
        """Preempt a conversation for a request that can run now: one that waits for its mask, or one of a call that has
        more than its share. Returns False if there is none."""
        late = (running for running in self._occupancy.active.values() if running.late)
        preempted = next(late, None) or self._beyond_its_share(request)
        if preempted is not None:
            self._occupancy.preempt([preempted])
        return preempted is not None

    def _beyond_its_share(self, request: Request) -> Request | None:
        """Return the newest conversation of the call with the most, if the request's call would still have fewer."""
        running = self._occupancy.running()
        counts = Counter(conversation.call for conversation in running)
        if max(counts.values(), default=0) <= counts[request.call] + 1:
            return None
        return max(running, key=lambda conversation: (counts[conversation.call], conversation.number))

    def _in_turn(self) -> list[Request]:
        """Return the waiting requests in the order of admission. Weights take turns, and so do the calls that sample
        from the same weights, so that no call waits for all requests of another."""
        running = self._occupancy.running()
        calls = [request.call for request in running]
        by_call = _taking_turns(self._occupancy.waiting, calls, lambda request: request.call)
        keys = [request.params.weights_key for request in running]
        return _taking_turns(by_call, keys, lambda request: request.params.weights_key)

    def _match(self, request: Request) -> Match:
        """Return the row that holds the most of a request's prompt, after making rows long enough for it."""
        tokens = request.tokens()
        self._occupancy.reserve(len(tokens))
        return self._occupancy.rows.slots.match(tokens[:-1], self._occupancy.member(request).number)

    def _is_being_filled(self, request: Request, match: Match) -> bool:
        """Return whether more of the prompt than the cache holds is about to be computed for another request."""
        tokens, more = request.tokens()[:-1], match.tokens + SHARED + 1
        return len(tokens) >= more and any(
            len(other.tokens()) > more and (other.tokens()[:more] == tokens[:more]).all()
            for other in self._occupancy.filling
            if other.params.weights_key == request.params.weights_key
        )

    def _give_up(self, batch: Sequence[Request], error: Exception) -> None:
        """End requests that could not be prefilled, or queue them again if preempting others frees memory."""
        occupancy = self._occupancy
        for request in batch:
            if request in occupancy.filling:
                occupancy.filling.remove(request)
            occupancy.leave(request)
        waits = is_out_of_memory(error) and occupancy.preempt_half()
        for request in reversed(batch):
            if not waits:
                occupancy.fail(request, explained(error))
            elif request not in occupancy.waiting:
                occupancy.waiting.appendleft(request)

    def _assign_row(self, request: Request, match: Match) -> bool:
        """Give a request a row with what the cache holds of its prompt. Returns False if the request must wait."""
        rows = self._occupancy.rows
        if isinstance(rows.cache, PagedCache) and not self._has_pages(rows.cache, request, match):
            return False
        row = rows.assign(match, self._occupancy.member(request).number)
        if row is None:
            return False
        request.row = row
        if request.cached_tokens is None:
            request.cached_tokens = match.tokens
            self._counts.reused_tokens += match.tokens
        return True

    def _has_pages(self, cache: PagedCache, request: Request, match: Match) -> bool:
        """Return whether there are pages for the request's reply beside those that running requests may come to need.

        Raises OutOfMemory if there are too few although nothing runs.
        """
        active, filling, rows = self._occupancy.active, self._occupancy.filling, self._occupancy.rows
        needed = pages_of(_expected_of(request)) - match.tokens // PAGE
        if not active and not filling:
            if len(request.tokens()) > cache.length:
                raise OutOfMemory(f"memory holds the keys and values of {cache.length} tokens")
            return True
        state, active_rows = rows.state, np.fromiter(active, dtype=np.int64, count=len(active))
        of_active = _expected(state.prompts[active_rows], state.produced[active_rows], state.limits[active_rows])
        of_filling = np.array([_expected_of(other) for other in filling], dtype=np.int64)
        expected = np.concatenate([of_active, of_filling])
        if pages_of(_expected_of(request)) + int((-(-expected // PAGE)).sum()) <= cache.pages:
            return True  # even if nothing is shared
        running_rows = np.array([*active_rows, *(other.row for other in filling)])
        needed += cache.missing(running_rows, rows.slots.lengths[running_rows], expected)
        return needed <= cache.room(running_rows.tolist(), match.row, match.tokens)

    def _fill(self, budget: int) -> int:
        """Prefill one piece of each placed request. Returns the number of tokens that were computed, at least 1."""
        rows = self._occupancy.rows
        pieces, weights_of_pieces = self._pieces(budget)
        if pieces:
            self._compute(pieces, weights_of_pieces)
        for piece in pieces:
            stop = piece.start + len(piece.ids)
            rows.slots.tokens[piece.row, piece.start : stop] = piece.ids
            rows.slots.lengths[piece.row] = stop
            self._counts.prefilled_tokens += len(piece.ids)
        for request in list(self._occupancy.filling):
            tokens = request.tokens()
            if rows.slots.lengths[request.row] == len(tokens) - 1:
                self._occupancy.filling.remove(request)
                self._occupancy.active[request.row] = request
                rows.state.start(request.row, request, int(tokens[-1]))
        return max(sum(len(piece.ids) for piece in pieces), 1)

    def _pieces(self, budget: int) -> tuple[list[Piece], list[Weights]]:
        """Return the next piece of each placed request, whose tokens then have room in its row, and its weights."""
        rows = self._occupancy.rows
        pieces: list[Piece] = []
        weights_of_pieces: list[Weights] = []
        room = min(self._chunk, budget) if self._weights.supports_packing else self._chunk
        for request in self._occupancy.filling:
            start = int(rows.slots.lengths[request.row])
            ids = request.tokens()[start:-1][:room]
            if len(ids):
                rows.hold(request.row, start, start + len(ids))
                pieces.append(Piece(request.row, start, ids))
                weights_of_pieces.append(self._occupancy.member(request).weights)
                room -= len(ids)
        return pieces, weights_of_pieces

    def _compute(self, pieces: Sequence[Piece], weights_of_pieces: Sequence[Weights]) -> None:
        cache = self._occupancy.rows.cache
        assert cache is not None
        started = time.perf_counter()
        if len(self._occupancy.members) == 1:
            self._weights.prefill(cache, pieces)
        else:
            cast(Batchable, self._weights).prefill_each(cache, pieces, weights_of_pieces)
        self._gathering.passed(time.perf_counter() - started)


def _expected(prompts: _Tokens, produced: _Tokens, limits: _Tokens) -> npt.NDArray[np.int64]:
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
    return [request for _, request in sorted(turns, key=lambda turn: turn[0])]
