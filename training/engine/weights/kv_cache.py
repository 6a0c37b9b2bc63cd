"""The keys and values of many conversations, with one row each in one tensor that is allocated once and rarely
grown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from learnloop_service.training.engine.memory import free_bytes
from learnloop_service.training.engine.weights.stages import Stage, layers_by_device, stages_of


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape and location of one cached token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    """The device of the first layers."""
    stages: tuple[Stage, ...] = ()
    """The placement of layers on devices if there are several."""

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def free_bytes(self) -> int:
        """Size in bytes of the largest cache that the devices currently have room for."""
        layers = layers_by_device(self.stages or stages_of(self.layers, [self.device]))
        return min(free_bytes(device) * self.layers // count for device, count in layers.items())


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `ids` ([n], int64) that follow the first `start` tokens of a cache row."""

    row: int
    start: int
    ids: npt.NDArray[np.int64]


class KVCache:
    """Keys and values per layer of `rows` conversations of up to `length` tokens.

    Keys are [rows, kv_heads, head_dim, length] and values [rows, kv_heads, length, head_dim]. Keys are transposed so
    that the product with a query reads them in order (which takes a fifth less time on a CPU). Positions that hold no
    token are finite: attention gives them the weight 0, and 0 x NaN would not be 0.
    """

    def __init__(self, shape: KVShape, rows: int, length: int) -> None:
        """Allocate `rows` rows of `length` tokens. Raises MemoryError or torch.OutOfMemoryError."""
        self.shape = shape
        self.rows = rows
        self.length = length
        layers, heads, dim = shape.layers, shape.kv_heads, shape.head_dim
        keys = _zeros(shape, (layers, rows, heads, dim, length))
        values = _zeros(shape, (layers, rows, heads, length, dim))
        # Both are viewed as [layers, length, rows, kv_heads, head_dim], which is all that copying rows needs.
        self._rows = [keys.movedim(4, 1), values.movedim(3, 1)]
        self.layers = tuple(zip(keys.unbind(), values.unbind(), strict=True))

    @property
    def bytes(self) -> int:
        """Memory that the cache can come to take. On a CPU the system does not count memory that was never written."""
        return self.rows * self.length * self.shape.bytes_per_token

    def tokens_in(self, lengths: npt.NDArray[np.int64]) -> int:
        """Return how many tokens the cache holds if its rows have these lengths."""
        return int(lengths.sum())

    @cached_property
    def pairs(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """The layers' keys and values with rows and heads as one dimension, [rows * kv_heads, ...]."""
        return tuple((keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.layers)

    @cached_property
    def by_head(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """The layers' keys and values in transformers' layout, [rows, kv_heads, length, head_dim]."""
        keys, values = (part.permute(0, 2, 3, 1, 4) for part in self._rows)
        return tuple(zip(keys.unbind(), values.unbind(), strict=True))

    def hold(self, row: int, start: int, stop: int) -> None:
        """Do nothing, because a row has its room from the start."""

    def forget(self, row: int) -> None:
        """Do nothing, because a row keeps its room."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` to row `target`."""
        self._take(self, source, target, length)

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""
        saved = [part[:, :length, one].clone() for part in self._rows]
        self.copy(other, one, length)
        for part, tokens in zip(self._rows, saved, strict=True):
            part[:, :length, other] = tokens

    def clear(self, row: int) -> None:
        """Make a row finite again after a computation that was not."""
        for part in self._rows:
            part[:, :, row] = 0

    def resized(self, rows: int, length: int, keep: Sequence[tuple[int, int]]) -> "KVCache":
        """Return a new cache whose row i holds the first n tokens of this one's row r, for the i-th pair (r, n) of
        `keep`."""
        new = KVCache(self.shape, rows, length)
        for target, (source, count) in enumerate(keep):
            new._take(self, source, target, count)
        return new

    def _take(self, other: "KVCache", source: int, target: int, length: int) -> None:
        for part, other_part in zip(self._rows, other._rows, strict=True):
            part[:, :length, target] = other_part[:, :length, source]


def _zeros(shape: KVShape, size: tuple[int, ...]) -> torch.Tensor:
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # NumPy's zeros are mapped lazily, so unused rows take no memory. torch.zeros would write them.
    flat = np.zeros(math.prod(size) * shape.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(flat).view(shape.dtype).view(size)
