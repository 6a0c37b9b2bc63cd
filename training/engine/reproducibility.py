"""Determines by trial whether a conversation's bits depend on what else is computed with it.

Samples, and therefore trained weights, are bit-reproducible only if a matrix product of M rows gives the same bits as
these rows in a larger product, with one thread and with several. That depends on the processor, on the libraries and
their mode (see cpu_mode.py) and on the shapes, so it is measured with the shapes of each loaded model.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from learnloop_service.training.engine.cpu_mode import MKL_MODE
from learnloop_service.training.engine.weights.attention import MIN_ROWS, attend
from learnloop_service.training.engine.weights.weights import Weights
from learnloop_service.training.protocol.model_facts import Reproducibility

_ROWS = (MIN_ROWS, 8, 12, 15, 16, 31, 48, 64, 129)
"""Row counts of products: those of decoded batches and some of prefilled pieces, which can have any."""
_ALL_ROWS = 160
_KEYS = (64, 144, 320)
"""Numbers of cached tokens that attention covers. The queries see only the first `_SEEN` of them."""
_SEEN = 40


def check(weights: Weights, threads: int) -> Reproducibility:
    """Compare products of the model's shapes with one and with `threads` torch threads. This takes milliseconds for a
    small model, and for a large one about as long as a prompt of a few hundred tokens."""
    if weights.kv.device.type != "cpu":
        return Reproducibility(False, "On a GPU the last bits of a sample depend on what shares its batch.")
    if not weights.exact_attention:
        return Reproducibility(False, "The model's own attention may depend on what shares the batch.")
    counts = sorted({1, threads})
    with torch.inference_mode(), _threads_kept():
        differing = [_differing(matrix, counts) for matrix in weights.matrices()]
        attention = _attention_differs(weights.kv.head_dim, weights.kv.dtype, counts)
    products = len(differing) * len(_ROWS) * len(counts)
    mode = f"{MKL_MODE}={os.environ.get(MKL_MODE, '')}"
    if any(differing):
        what = f"{sum(differing)} of {products} matrix products differ"
    elif attention:
        what = "attention differs"
    else:
        with_threads = "one thread" if threads == 1 else f"1 and {threads} threads"
        return Reproducibility(
            True, f"Checked: {products} matrix products and attention, alike in any batch with {with_threads} ({mode})."
        )
    return Reproducibility(False, f"On this processor {what} with the batch or the number of threads ({mode}).")


def _differing(matrix: Tensor, thread_counts: Sequence[int]) -> int:
    """Count the products of some rows with a matrix [out, in] that differ from the same rows of a larger product."""
    rows = _numbers((_ALL_ROWS, matrix.shape[1]), matrix.dtype)
    torch.set_num_threads(1)
    expected = F.linear(rows, matrix)
    differing = 0
    for threads in thread_counts:
        torch.set_num_threads(threads)
        differing += sum(not torch.equal(F.linear(rows[:count], matrix), expected[:count]) for count in _ROWS)
    return differing


def _attention_differs(head_dim: int, dtype: torch.dtype, thread_counts: Sequence[int]) -> bool:
    """Whether a query's result depends on the other queries or on cached tokens that it does not see."""
    query = _numbers((2, 64, head_dim), dtype)
    keys, values = _numbers((2, head_dim, max(_KEYS)), dtype), _numbers((2, max(_KEYS), head_dim), dtype)
    expected = None
    for threads in thread_counts:
        torch.set_num_threads(threads)
        for span in _KEYS:
            mask = torch.zeros((1, 1, span), dtype=dtype)
            mask[..., _SEEN:] = float("-inf")
            for count in (MIN_ROWS, 12, 64):
                mixed = attend(query[:, :count], keys[..., :span], values[:, :span], mask)[:, :MIN_ROWS]
                expected = mixed if expected is None else expected
                if not torch.equal(mixed, expected):
                    return True
    return False


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@contextmanager
def _threads_kept() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
