"""Reads a GGUF file faster: its metadata once, and its tensors on all cores."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PIECE = 1 << 18
"""Number of values that are unpacked at a time. They and what is computed on the way stay in a core's caches, which is
about three times as fast as a whole tensor."""


@contextmanager
def read_once() -> Iterator[None]:
    """Let transformers parse a file's metadata once; it does so for the tokenizer, the config and the weights, and a
    vocabulary of 262,144 tokens takes 20 s each time. Slices of an array that is no memory map cost a third."""
    gguf: Any = import_module("gguf")
    reader: Any = gguf.GGUFReader

    class Reader(reader):  # type: ignore[misc]
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, file: Any) -> None:
            self._data = file.view(np.ndarray)

    gguf.GGUFReader = cache(Reader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader


@contextmanager
def on_all_cores(unpacked: Callable[[int], None]) -> Iterator[None]:
    """Let transformers unpack pieces of a tensor at the same time, which it does with one whole tensor after the other.
    The values are the same. `unpacked` is called with the bytes of each tensor that is done. Another version of
    transformers that unpacks elsewhere is left to itself."""
    mapping: Any = None
    with suppress(ImportError):
        mapping = import_module("transformers.integrations.gguf.gguf_conversion_mapping")
    whole = getattr(mapping, "dequantize_blocks", None)
    if whole is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the pieces are what is computed at the same time
    with ThreadPoolExecutor(os.cpu_count() or 1, "unpacking") as pool:

        def in_pieces(weight: Tensor, kind: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
            height = max(1, _PIECE // columns)
            values = torch.empty((rows, columns), dtype=dtype)

            def unpack(start: int) -> None:
                piece = weight[start : start + height]
                values[start : start + height] = whole(piece, kind, len(piece), columns, dtype)

            for _ in pool.map(unpack, range(0, rows, height)):
                pass
            unpacked(weight.nbytes)
            return values

        mapping.dequantize_blocks = in_pieces
        try:
            yield
        finally:
            mapping.dequantize_blocks = whole
            torch.set_num_threads(threads)
