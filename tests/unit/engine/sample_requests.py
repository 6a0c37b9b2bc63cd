"""Requests to a sampler, and their outcomes."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.attention import round_up
from learnloop_service.training.engine.weights.kv_cache import KVCache, Piece
from learnloop_service.training.engine.weights.paged_cache import PAGE, PagedCache
from learnloop_service.training.engine.weights.weights import Weights

KEY = "project/model@0"
CONTEXT = 512


def request(prompt: Sequence[int], max_tokens: int = 8, seed: int | None = 1, **fields: Any) -> SampleRequest:
    return SampleRequest(tuple(prompt), KEY, max_tokens, seed=seed, **fields)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(320) for _ in range(length)]


def sampler_of(weights: Weights, **options: int) -> Sampler:
    sampler = Sampler(**options)
    sampler.set_weights(KEY, weights, decode=lambda ids: "".join(chr(ord("a") + token % 26) for token in ids))
    return sampler


def outcomes(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample | Exception]:
    """Submit all requests, and step until all have ended."""
    outcome_of: dict[int, Sample | Exception] = {}
    for index, sample_request in enumerate(requests):
        sampler.submit(sample_request, None, partial(outcome_of.__setitem__, index))
    while sampler.busy:
        sampler.step()
    return [outcome_of[index] for index in range(len(requests))]


def samples(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    ended = outcomes(sampler, requests)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in ended if isinstance(outcome, Sample)]


def mixed_requests(count: int) -> list[SampleRequest]:
    """Prompts of many lengths, some alike and some with common beginnings, with all kinds of settings."""
    generator = random.Random(5)
    shared = prompt_of(40, seed=99)
    return [
        request(
            shared[: generator.choice([0, 20, 40])] + prompt_of(generator.randrange(1, 60), seed=index % 5),
            max_tokens=generator.randrange(1, 30),
            seed=index,
            temperature=generator.choice([0.0, 0.7, 1.0, 1.0]),
            top_p=generator.choice([1.0, 1.0, 0.8]),
            top_k=generator.choice([0, 0, 5]),
            min_p=generator.choice([0.0, 0.0, 0.1]),
            stop_ids=frozenset(generator.sample(range(320), generator.choice([0, 1, 8]))),
            top_logprobs=generator.choice([0, 0, 2]),
        )
        for index in range(count)
    ]


class Cramped:
    """Weights on a machine whose memory holds a limited number of rows, or of tokens of prompts."""

    def __init__(self, weights: Weights, *, rows: int = 1 << 30, tokens: int = 1 << 30) -> None:
        self.kv, self.context = weights.kv, weights.context
        self.vocab_size, self.parameters = weights.vocab_size, weights.parameters
        self.supports_packing, self.pad_to_multiple_of = weights.supports_packing, weights.pad_to_multiple_of
        self.prefilled_together = weights.prefilled_together
        self.exact_attention, self.matrices = weights.exact_attention, weights.matrices
        self._weights, self._rows, self._tokens = weights, rows, tokens

    def prefill(self, cache: Any, pieces: Sequence[Piece]) -> None:
        if any(piece.start + len(piece.ids) > self._tokens for piece in pieces):
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")
        self._weights.prefill(cache, pieces)

    def decode(self, cache: Any, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        if len(ids) > self._rows:
            raise MemoryError
        return self._weights.decode(cache, ids, positions, span)


class Packed(Cramped):
    """Weights as a GPU's: rows are prefilled together, and lie in pages. Remembers the pieces' lengths in each pass.

    It computes on rows of a KVCache, which are filled from the pages before each pass.
    """

    def __init__(self, weights: Weights, context: int | None = None) -> None:
        super().__init__(weights)
        self.supports_packing, self.pad_to_multiple_of = True, 8
        self.context = context or weights.context
        self.passes: list[list[int]] = []
        self.steps = 0
        self.caches: list[PagedCache] = []

    def prefill(self, cache: PagedCache, pieces: Sequence[Piece]) -> None:
        assert len({piece.row for piece in pieces}) == len(pieces)
        self.passes.append([len(piece.ids) for piece in pieces])
        if cache not in self.caches:
            self.caches.append(cache)
        spans = [(piece.start, piece.start + len(piece.ids)) for piece in pieces]
        rows = self._rows_of(cache, [piece.row for piece in pieces], [start for start, _ in spans])
        super().prefill(rows, [Piece(row, piece.start, piece.ids) for row, piece in enumerate(pieces)])
        for row, (piece, span) in enumerate(zip(pieces, spans, strict=True)):
            self._write_back(rows, row, cache, piece.row, *span)

    def decode(self, cache: PagedCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        self.steps += 1
        rows = self._rows_of(cache, list(range(len(ids))), positions.clamp(min=0).tolist())
        logits = super().decode(rows, ids, positions.clamp(min=0), span)
        for row, position in enumerate(positions.tolist()):
            if position >= 0:
                self._write_back(rows, row, cache, row, position, position + 1)
        return logits

    def _rows_of(self, cache: PagedCache, rows: list[int], lengths: list[int]) -> KVCache:
        contiguous = KVCache(cache.shape, round_up(len(rows), 8), self._weights.context + 16)
        for target, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            places = torch.from_numpy(cache.places(row, 0, length))
            for (keys, values), (paged_keys, paged_values) in zip(contiguous.layers, cache.layers, strict=True):
                keys[target, :, :, :length] = paged_keys[places].permute(1, 2, 0)
                values[target, :, :length] = paged_values[places].transpose(0, 1)
        return contiguous

    def _write_back(self, rows: KVCache, source: int, cache: PagedCache, row: int, start: int, stop: int) -> None:
        places = torch.from_numpy(cache.places(row, start, stop))
        assert bool((places >= PAGE).all()), "the first page is nobody's"
        for (keys, values), (paged_keys, paged_values) in zip(rows.layers, cache.layers, strict=True):
            paged_keys[places] = keys[source, :, :, start:stop].permute(2, 0, 1)
            paged_values[places] = values[source, :, start:stop].transpose(0, 1)
