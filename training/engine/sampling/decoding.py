"""Decodes one token for each conversation of a batch, and ends the replies that are complete."""

from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from learnloop_service.training.engine.memory import downloading, is_out_of_memory, uploaded
from learnloop_service.training.engine.sampling.batch import Request
from learnloop_service.training.engine.sampling.figures import Counts
from learnloop_service.training.engine.sampling.masks import wait_for
from learnloop_service.training.engine.sampling.occupancy import Occupancy, StepAhead, explained
from learnloop_service.training.engine.sampling.requests import NonFiniteLogits, Sample
from learnloop_service.training.engine.sampling.sample_tokens import Allowed, sample_tokens, uniforms
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE, round_up
from learnloop_service.training.engine.weights.paged_cache import PagedCache
from learnloop_service.training.engine.weights.weights import Batchable

_Indices = npt.NDArray[np.int64]


class Decoding:
    """The decode steps of a batch. On a GPU the next step begins before this one's tokens are examined."""

    def __init__(self, occupancy: Occupancy, counts: Counts) -> None:
        self._occupancy, self._counts = occupancy, counts

    def step(self) -> None:
        """Decode one token for each conversation that is ready; there must be one."""
        occupancy = self._occupancy
        try:
            self._decode()
        except Exception as error:
            if not is_out_of_memory(error) or not occupancy.preempt_half():
                for request in list(occupancy.active.values()):
                    occupancy.fail(request, explained(error))

    def _decode(self) -> None:
        decoded = self._decoded_ahead() or self._decoded_now()
        if decoded is None:
            return
        active, logits, allowed = self._masked(*decoded)
        if not len(active):
            return
        rows, state = self._occupancy.rows.slots, self._occupancy.rows.state
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

    def _decoded_now(self) -> tuple[_Indices, torch.Tensor] | None:
        """Decode the rows that are ready. Returns them with their logits, or None if there are none."""
        occupancy = self._occupancy
        rows, state = occupancy.rows.slots, occupancy.rows.state
        if isinstance(occupancy.rows.cache, PagedCache):
            occupancy.hold_next(occupancy.rows.cache)
        active = np.array(occupancy.ready_rows(), dtype=np.int64)
        if not len(active):  # holding pages or making a longer cache preempted them
            return None
        longest = int(rows.lengths[active].max()) + 1
        occupancy.reserve(longest)
        if rows is not occupancy.rows.slots:  # the rows were created again
            return self._decoded_now()
        count = min(round_up(int(active[-1]) + 1, occupancy.weights.pad_to_multiple_of), len(rows.lengths))
        positions = rows.lengths[:count]
        if isinstance(occupancy.rows.cache, PagedCache):
            positions = _only_at(active, rows.lengths[active], count)
        feed = uploaded(state.feed[:count], occupancy.weights.kv.device)
        return active, _of_rows(active, self._logits(feed, positions, longest))

    def _logits(self, feed: torch.Tensor, positions: _Indices, longest: int) -> torch.Tensor:
        """Decode one token for each of the first M rows and return their logits [M, vocabulary].

        `feed` [M] are the tokens, `positions` [M] their positions, in a PagedCache -1 for rows that are not decoded.
        The longest row then has `longest` tokens.
        """
        occupancy, cache = self._occupancy, self._occupancy.rows.cache
        uploaded_positions = uploaded(positions, occupancy.weights.kv.device)
        if len(occupancy.members) == 1:
            return occupancy.weights.decode(cache, feed, uploaded_positions, round_up(longest, KEY_MULTIPLE))
        active = occupancy.active
        weights = [occupancy.member(active[row]).weights if row in active else None for row in range(len(positions))]
        return cast(Batchable, occupancy.weights).decode_each(cache, feed, uploaded_positions, weights)

    def _decode_ahead(self, active: _Indices, chosen: torch.Tensor) -> None:
        """Let a GPU begin the next step of all active rows, which just sampled `chosen`, while it is examined here
        whose replies ended with it. Nothing begins if others are about to join the rows, or if pages are short."""
        occupancy = self._occupancy
        cache, rows, state = occupancy.rows.cache, occupancy.rows.slots, occupancy.rows.state
        others_join = occupancy.more_join or len(active) < len(occupancy.ready_rows())
        if not isinstance(cache, PagedCache) or others_join:
            return
        is_continued = state.produced[active] + 1 < state.limits[active]
        continued, positions = active[is_continued], rows.lengths[active[is_continued]] + 1
        if not len(continued) or int(positions.max()) + 1 >= cache.length:
            return
        unready = cache.unready(continued, positions)
        if len(unready) > cache.free:
            return
        for row in unready.tolist():
            cache.hold(row, int(rows.lengths[row]) + 1, int(rows.lengths[row]) + 2)
        count = round_up(int(active[-1]) + 1, occupancy.weights.pad_to_multiple_of)
        feed = chosen
        if len(active) < count:
            feed = torch.zeros(count, dtype=chosen.dtype, device=chosen.device)
            feed[uploaded(active, chosen.device)] = chosen
        logits = self._logits(feed, _only_at(continued, positions, count), int(positions.max()) + 1)
        occupancy.ahead = StepAhead({occupancy.active[row]: row for row in continued.tolist()}, logits)

    def _decoded_ahead(self) -> tuple[_Indices, torch.Tensor] | None:
        """Return the rows of the step that began early, without those whose replies ended, and their logits. None if no
        step began early or none of its replies continues."""
        ahead, self._occupancy.ahead = self._occupancy.ahead, None
        if ahead is None or not ahead.requests:
            return None
        continued = sorted((request.row, index) for request, index in ahead.requests.items())
        active, indices = np.array(continued, dtype=np.int64).T
        return active, _of_rows(indices, ahead.logits)

    def _masked(self, active: _Indices, logits: torch.Tensor) -> tuple[_Indices, torch.Tensor, Allowed | None]:
        """Return the rows that can be sampled now, their logits, and the tokens that grammars allow.

        Leaves out rows whose masks are late: the next step in which they take part computes the same logits again.
        Requests whose grammars failed end here.
        """
        constrained = np.flatnonzero(self._occupancy.rows.state.constrained[active])
        if not len(constrained):
            return active, logits, None
        requests = {int(index): self._occupancy.active[int(active[index])] for index in constrained}
        wait_for([request.masks for request in requests.values() if request.masks])
        bits = {}
        for index, request in requests.items():
            try:
                mask = request.masks.allowed() if request.masks else None
            except Exception as error:
                self._occupancy.fail(request, error)
            else:
                if mask is not None:
                    bits[index] = mask
        can_sample = np.array([row in self._occupancy.active for row in active.tolist()])
        can_sample[[index for index in requests if index not in bits]] = False
        indices = np.flatnonzero(can_sample)
        allowed = Allowed(np.searchsorted(indices, list(bits)), np.stack(list(bits.values()))) if bits else None
        return active[can_sample], _of_rows(indices, logits), allowed

    def _attend_to(self, row: int, token: int, logprobs: torch.Tensor, is_stop: bool) -> None:
        """Report the token that a single row sampled, and end the reply if the token completes it."""
        request, state = self._occupancy.active.get(row), self._occupancy.rows.state
        if request is None:
            return None  # another request's listener cancelled it
        params, produced = request.params, int(state.produced[row])
        value = float(state.logprobs[row, produced - 1])
        if not np.isfinite(value):
            return self._fail_as_not_finite(request)
        if params.top_logprobs:
            best = logprobs.topk(min(params.top_logprobs, len(logprobs)))
            request.top.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        if request.on_token is not None:
            request.on_token(token, value)
        if self._occupancy.active.get(row) is not request:
            return None  # on_token cancelled it
        stop_text = self._stop_text(request, state.ids[row, :produced])
        is_stopped = is_stop or stop_text is not None
        if is_stopped or produced >= request.max_tokens:
            self._complete(request, stop_text, is_stopped=is_stopped)
        elif request.masks is not None:
            request.masks.take(token)
        return None

    def _fail_as_not_finite(self, request: Request) -> None:
        rows = self._occupancy.rows
        assert rows.cache is not None
        rows.cache.clear(request.row)
        rows.forget(request.row)
        self._occupancy.fail(request, NonFiniteLogits("the weights give log-probabilities that are not finite"))

    def _complete(self, request: Request, stop_text: str | None, *, is_stopped: bool) -> None:
        """Hand over a complete reply; its row keeps the conversation."""
        row, state = request.row, self._occupancy.rows.state
        produced = int(state.produced[row])
        ids, values = state.ids[row, :produced].tolist(), state.logprobs[row, :produced].tolist()
        self._occupancy.leave(request)
        request.on_done(
            Sample(
                ids=ids,
                logprobs=values,
                finish_reason="stop" if is_stopped else "length",
                seed=request.seed,
                prompt_tokens=len(request.params.prompt),
                cached_tokens=request.cached_tokens or 0,
                top=request.top,
                stop_text=stop_text,
            )
        )

    def _stop_text(self, request: Request, ids: _Indices) -> str | None:
        """Return the stop string that the last token completed. Each token is at least one byte, so few need
        decoding."""
        stops, decode = request.params.stop, self._occupancy.member(request).decode
        if not stops or decode is None:
            return None
        longest = max(len(stop.encode()) for stop in stops)
        text = decode(ids[-(longest + 4) :].tolist())
        return next((stop for stop in stops if stop in text), None)


def _of_rows(rows: _Indices, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of these rows, without a copy if they are all rows."""
    return logits if np.array_equal(rows, np.arange(len(logits))) else logits[uploaded(rows, logits.device)]


def _only_at(rows: _Indices, positions: _Indices, count: int) -> _Indices:
    """Return the positions [count] with which a paged cache writes only these rows. The pages that other rows may share
    stay as they are."""
    all_positions = np.full(count, -1, dtype=np.int64)
    all_positions[rows] = positions
    return all_positions
