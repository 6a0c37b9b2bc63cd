"""Attention whose result for one query is bit-identical whatever else is computed with it.

A conversation must give the same tokens and log-probabilities whatever shares its batch, whichever cache row it has,
and whether its past was decoded token by token or prefilled in one pass. Matrix products break that in three ways, seen
with MKL (2024.2) and avoided here:

- fewer than 4 rows take a different kernel than more rows: pad to MIN_ROWS (the linear layers need it too);
- a long inner dimension is cut into blocks whose size depends on its length: the product with the values is summed in
  fixed blocks of VALUE_BLOCK;
- a vector loop has a different remainder: the number of keys is a multiple of KEY_MULTIPLE.

This holds for one torch thread on a CPU. With several threads, products are cut at places that depend on their size (3
of 80 samples differed with 2 threads), and cuBLAS gives no such guarantee.
"""

import torch

MIN_ROWS = 4
KEY_MULTIPLE = 16
VALUE_BLOCK = 128


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return softmax(query keys + mask) values.

    `query` is [B, R, D], already scaled, with R >= 4; `keys` are [B, D, T] and `values` [B, T, D] with T a multiple of
    KEY_MULTIPLE; `mask` is 0 or -inf and expands to [B, R, T]. Returns [B, R, D].
    """
    scores = torch.bmm(query, keys).add_(mask)
    weights = torch.softmax(scores, dim=-1)
    out = torch.bmm(weights[..., :VALUE_BLOCK], values[:, :VALUE_BLOCK])
    for start in range(VALUE_BLOCK, values.shape[1], VALUE_BLOCK):
        block = slice(start, start + VALUE_BLOCK)
        out.baddbmm_(weights[..., block], values[:, block])
    return out


def causal_mask(positions: torch.Tensor, span: int, dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
    """Return a mask [n, span] that is 0 where a query at `positions` ([n]) sees the key, else -inf. `window` limits it
    to that many last keys.

    A position beyond the span (of a row that is not decoded now) is treated as the last one, so that no row is masked
    entirely.
    """
    keys = torch.arange(span, device=positions.device)
    last = positions.clamp(max=span - 1)[:, None]
    visible = keys <= last
    if window is not None:
        visible &= keys > last - window
    return torch.zeros(visible.shape, dtype=dtype, device=positions.device).masked_fill_(~visible, float("-inf"))


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
