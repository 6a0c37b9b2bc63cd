"""FlashAttention-3 in place of PyTorch's own, where it is installed."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import attention

from learnloop_service.training.engine.trainer.layer_kernels import attend, attend_backward
from learnloop_service.training.engine.trainer.packing import Packing
from learnloop_service.training.engine.weights.flash_attention import use_newest
from learnloop_service.training.engine.weights.varlen_attention import Segments

HEADS, KV_HEADS = 8, 2
QUERIES, KEYS = (300, 1, 77), (300, 500, 205)
"""Tokens of three sequences: one has them all here, the others begin elsewhere."""


@pytest.fixture
def newest() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if use_newest() != 3:
        pytest.skip("needs FlashAttention-3 and a Hopper GPU")
    yield
    attention.restore_flash_attention_impl()


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("dim", [64, 128])
def test_outputs_and_gradients_are_those_of_float32(dim: int) -> None:
    torch.manual_seed(0)
    heads = tuple(
        torch.randn(count, number, dim, dtype=torch.bfloat16)
        for count, number in ((sum(QUERIES), HEADS), (sum(KEYS), KV_HEADS), (sum(KEYS), KV_HEADS))
    )
    slope = torch.randn(sum(QUERIES), HEADS * dim, dtype=torch.bfloat16)
    for one, other in zip(passed(heads, slope, "cuda"), passed(heads, slope, "cpu"), strict=True):
        error = (one.float().cpu() - other).norm() / other.norm()
        assert error < 0.01


def passed(heads: tuple[Tensor, ...], slope: Tensor, device: str) -> tuple[Tensor, ...]:
    """The output, and the gradients of queries, keys and values: in bfloat16 on a GPU, in float32 elsewhere."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    query, key, value = (head.to(device, dtype) for head in heads)
    packing = Packing(Segments.of(QUERIES, KEYS, torch.device(device)), None)
    attended = attend((query, key, value), packing, query.shape[-1] ** -0.5, None)
    gradients = attend_backward(
        slope.to(device, dtype), (query, key, value), attended, packing, query.shape[-1] ** -0.5, None
    )
    return attended.out, *gradients
