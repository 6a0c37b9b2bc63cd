"""Causal attention over sequences of different lengths packed one after another, without padding."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from learnloop_service.training.engine.memory import uploaded


@dataclass(frozen=True, slots=True)
class Segments:
    """The offsets of sequences in packed queries and in packed keys, both int32 [sequences + 1], from 0 to the total.

    A sequence's queries are its last tokens; its keys are all of them.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    longest_queries: int
    longest_keys: int

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> "Segments":
        """Compute the offsets from the lengths of each sequence."""

        def starts(lengths: Sequence[int]) -> torch.Tensor:
            return uploaded(np.array([0, *itertools.accumulate(lengths)], dtype=np.int32), device)

        return cls(starts(queries), starts(keys), max(queries), max(keys))

    def to(self, device: torch.device) -> "Segments":
        """Return a copy on another device."""
        return replace(self, queries=self.queries.to(device), keys=self.keys.to(device))


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Return attention's output [Q, heads, D] for queries [Q, heads, D] and keys and values [K, kv_heads, D]. The last
    query of a sequence sees all of its keys, or the last `window` of them. On a GPU this is FlashAttention (bfloat16),
    elsewhere a loop over the sequences."""
    if query.device.type == "cuda":
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            segments.queries,
            segments.keys,
            segments.longest_queries,
            segments.longest_keys,
            0.0,
            True,
            False,
            scale=scale,
            window_size_left=None if window is None else window - 1,
            window_size_right=None if window is None else 0,
        )[0]
        return out
    parts = []
    for q, k in zip(
        itertools.pairwise(segments.queries.tolist()), itertools.pairwise(segments.keys.tolist()), strict=True
    ):
        query_rows, key_rows = slice(*q), slice(*k)
        new, count = q[1] - q[0], k[1] - k[0]
        mask = torch.ones((new, count), dtype=torch.bool, device=query.device).tril(count - new)
        if window is not None:
            mask = mask.triu(count - new - window + 1)
        parts.append(
            F.scaled_dot_product_attention(
                query[query_rows].transpose(0, 1),
                key[key_rows].transpose(0, 1),
                value[key_rows].transpose(0, 1),
                attn_mask=mask,
                scale=scale,
                enable_gqa=True,
            ).transpose(0, 1)
        )
    return torch.cat(parts)
