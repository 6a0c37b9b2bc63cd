"""The keys and values of many conversations: one row each, in one tensor that is allocated once and grown rarely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one cached token takes, and where it lies."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Per layer keys [rows, kv_heads, head_dim, length] and values [rows, kv_heads, length, head_dim].

    Keys lie across, so that the product with a query reads them in order (a fifth less time than the other way).
    Positions that hold no token are finite: attention gives them the weight 0, and 0 x NaN would not be 0.
    """

    def __init__(self, shape: KVShape, rows: int, length: int) -> None:
        """Allocate `rows` rows of `length` tokens. Raises MemoryError or torch.OutOfMemoryError."""
        self.shape = shape
        self.rows = rows
        self.length = length
        self._keys = _zeros(shape, (shape.layers, rows, shape.kv_heads, shape.head_dim, length))
        self._values = _zeros(shape, (shape.layers, rows, shape.kv_heads, length, shape.head_dim))
        self.layers = tuple(zip(self._keys.unbind(), self._values.unbind(), strict=True))
        self.pairs = tuple((keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.layers)
        """The same with rows and heads as one dimension: [rows * kv_heads, ...]."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Give row `target` the first `length` tokens of row `source`."""
        self._take(self, source, target, length)

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""
        keys, values = self._keys[:, one, :, :, :length].clone(), self._values[:, one, :, :length].clone()
        self.copy(other, one, length)
        self._keys[:, other, :, :, :length] = keys
        self._values[:, other, :, :length] = values

    def clear(self, row: int) -> None:
        """Make a row finite again after a computation that was not."""
        self._keys[:, row] = 0
        self._values[:, row] = 0

    def resized(self, rows: int, length: int, keep: Sequence[tuple[int, int]]) -> "KVCache":
        """A new cache whose row i holds the first n tokens of this one's row r, for the i-th pair (r, n) of `keep`."""
        new = KVCache(self.shape, rows, length)
        for target, (source, count) in enumerate(keep):
            new._take(self, source, target, count)
        return new

    def _take(self, other: "KVCache", source: int, target: int, length: int) -> None:
        self._keys[:, target, :, :, :length] = other._keys[:, source, :, :, :length]
        self._values[:, target, :, :length] = other._values[:, source, :, :length]


def _zeros(shape: KVShape, size: tuple[int, ...]) -> torch.Tensor:
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # NumPy's zeros are mapped lazily: rows that nobody uses take no memory. torch.zeros would write them.
    flat = np.zeros(math.prod(size) * shape.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(flat).view(shape.dtype).view(size)
