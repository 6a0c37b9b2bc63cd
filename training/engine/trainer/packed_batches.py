"""Training batches without padding, in which a beginning shared by sequences is computed once."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from learnloop_service.training.engine.sampling.cache_slots import common_prefix
from learnloop_service.training.engine.trainer.chunked_logprobs import head_logprobs
from learnloop_service.training.engine.trainer.joined_layers import JoinedLayers
from learnloop_service.training.engine.trainer.packing import Packing, Stem
from learnloop_service.training.engine.trainer.whole_layers import WholeLayers
from learnloop_service.training.engine.weights.adapters import base_of
from learnloop_service.training.engine.weights.stages import on
from learnloop_service.training.engine.weights.varlen_attention import Segments

MIN_STEM = 64
"""Length that a beginning shared by all sequences must have to be computed separately, in tokens."""
STEM_SHARE = 4
"""Divisor for the memory of a stem's token relative to a batch's, because the stem's activations are not kept."""
BATCH_TOKENS = 64
"""Approximate cost of starting another batch, in tokens."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences packed one after another, each without the beginning that it shares with its predecessor.

    `members` are their numbers in the list that was cut. `tokens` and `positions` are [n]. For each of the N chosen
    tokens, in order of members, `before` [N] is the packed place whose hidden state predicts it, `targets` [N] is the
    token, and `sequence` [N] is its member's index in `members`.
    """

    members: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    packing: Packing
    before: Tensor
    targets: Tensor
    sequence: Tensor

    def begin(self, model: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        """Run the first stage of a model in stages and return a function that gives the result of `logprobs`."""
        base = base_of(model)
        layers: JoinedLayers | None = getattr(base, "joined_layers", None)
        if layers is None:
            return partial(self._logprobs, base)
        rest = layers.begin(self.tokens, self.positions, self.packing)

        def finish() -> tuple[Tensor, Tensor]:
            hidden = rest()
            device = hidden.device
            with on(device):
                hidden = base.model.norm(hidden[self.before.to(device)])
                logprobs, entropy = head_logprobs(hidden, base.joined.head, self.targets.to(device))
            return logprobs.to(self.sequence.device), entropy.to(self.sequence.device)

        return finish

    def logprobs(self, model: Any) -> tuple[Tensor, Tensor]:
        """Compute the result like Batch.logprobs. The model must be Llama-shaped with the attention of
        packed_attention.py."""
        return self.begin(model)()

    def _logprobs(self, base: Any) -> tuple[Tensor, Tensor]:
        whole: WholeLayers | None = getattr(base, "whole_layers", None)
        if whole is not None:
            hidden = base.model.norm(whole(self.tokens, self.positions, self.packing, self.before))
            return head_logprobs(hidden, base.lm_head.weight, self.targets)
        # Float32 weights are master weights; products use bfloat16 where it is fast.
        masters = self.tokens.device.type == "cuda" and base.lm_head.weight.dtype == torch.float32
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=masters):
            hidden = base.model(
                input_ids=self.tokens[None], position_ids=self.positions[None], use_cache=False, packing=self.packing
            ).last_hidden_state[0]
        chosen = hidden[self.before]
        return head_logprobs(chosen.bfloat16() if masters else chosen, base.lm_head.weight, self.targets)


def packed_batches(
    ids: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[int]],
    max_tokens: int,
    device: torch.device,
    *,
    stems: bool = False,
    last: torch.device | None = None,
) -> Iterator[PackedBatch]:
    """Cut sequences into batches of at most `max_tokens` packed tokens (a single longer sequence is allowed).

    Sequences are sorted by their tokens, so that each shares most with its neighbours: a group's prompt, or the part
    before a conversation forked, is in a batch once. Tokens shared across a cut are computed on both sides of it, so
    cuts are placed where that costs least. With `stems`, the beginning that all sequences share is left to
    JoinedLayers, which compute it once for all batches, and is not counted as a batch's tokens. `last` is the device
    for the log-probabilities if it differs from `device`.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in ids]
    order = sorted(range(len(ids)), key=lambda number: tuple(ids[number]))
    shared = [0, *(common_prefix(arrays[one], arrays[other]) for one, other in itertools.pairwise(order))]
    lengths = [len(arrays[number]) for number in order]
    cuts, stem = _cuts(lengths, shared, max_tokens), None
    most = min([*shared[1:], *(places[0] - 1 for places in chosen)]) if stems and len(cuts) > 2 else 0
    if most >= MIN_STEM:
        rest, shared_rest = [length - most for length in lengths], [0, *(length - most for length in shared[1:])]
        cuts = _cuts(rest, shared_rest, max(max_tokens - most // STEM_SHARE, 1))
        stem = Stem(torch.from_numpy(arrays[0][:most]).to(device), len(cuts) - 1)
    for start, stop in itertools.pairwise(cuts):
        yield _packed(order[start:stop], arrays, chosen, device, last or device, stem)


def _cuts(lengths: Sequence[int], shared: Sequence[int], most: int) -> list[int]:
    """Return where batches of at most `most` tokens begin, and the end, so that as little as possible is computed
    twice.

    A sequence shares its first `shared` tokens with its predecessor.
    """
    # by number of sequences: the cost (tokens computed twice, plus batches), and where the last batch begins
    best = [(0, 0)]
    for stop in range(1, len(lengths) + 1):
        size, cheapest = 0, (1 << 62, 0)
        for start in range(stop - 1, -1, -1):
            # In a batch from `start` on, the first sequence is complete and the others lack what they share.
            whole = size + lengths[start]
            if whole > most and start < stop - 1:
                break
            cheapest = min(cheapest, (best[start][0] + shared[start] + BATCH_TOKENS, start))
            size += lengths[start] - shared[start]
        best.append(cheapest)
    cuts = [len(lengths)]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    return cuts[::-1]


def _packed(
    members: list[int],
    ids: Sequence[npt.NDArray[np.int64]],
    chosen: Sequence[Sequence[int]],
    device: torch.device,
    last: torch.device,
    stem: Stem | None,
) -> PackedBatch:
    tokens, positions, keys, before, targets, sequence = ([np.empty(0, dtype=np.int64)] for _ in range(6))
    queries, lengths = [], []
    begun = len(stem.tokens) if stem else 0
    previous, places, size = ids[members[0]][:begun], np.arange(begun), begun
    for row, number in enumerate(members):
        whole, picked = ids[number], np.asarray(chosen[number], dtype=np.int64)
        shared = common_prefix(previous, whole)
        added = len(whole) - shared
        places = np.concatenate([places[:shared], np.arange(size, size + added)])
        if added:
            tokens.append(whole[shared:])
            positions.append(np.arange(shared, len(whole)))
            keys.append(places)
            queries.append(added)
            lengths.append(len(whole))
        before.append(places[picked - 1] - begun)
        targets.append(whole[picked])
        sequence.append(np.full(len(picked), row))
        previous, size = whole, size + added

    def joined(parts: list[npt.NDArray[np.int64]], where: torch.device = device) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(where)

    packing = Packing(Segments.of(queries, lengths, device), None if sum(lengths) == size else joined(keys), stem)
    chosen_ones = joined(before, last), joined(targets, last), joined(sequence, last)
    return PackedBatch(tuple(members), joined(tokens), joined(positions), packing, *chosen_ones)
