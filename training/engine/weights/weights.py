"""Frozen weights that can be sampled from, made from any Hugging Face causal language model."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from training.engine.weights.adapters import base_of, has_adapter
from training.engine.weights.kv_cache import KVShape, Piece
from training.engine.weights.llama_cpu import FusedWeights


class Weights(Protocol):
    """A model at one moment. Training the model it came from does not change it."""

    kv: KVShape
    context: int
    """The most tokens a sequence may have."""
    vocab_size: int
    parameters: int
    supports_packing: bool
    """Whether the cache is a PagedCache, and the pieces of many rows are prefilled in one pass. Else it is a KVCache,
    and they are one after the other."""
    pad_to_multiple_of: int
    """`decode` wants a multiple of so many rows."""

    exact_attention: bool
    """Whether attention is ours, whose result for a query does not depend on the others."""

    def matrices(self) -> Sequence[torch.Tensor]:
        """Of the matrices [out, in] that tokens are multiplied by, one of each shape."""

    def prefill(self, cache: Any, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of each piece into its row."""

    def decode(self, cache: Any, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Float32 logits [M, vocab] after one token for each of the first M rows (`span` as in attention.py).

        In a PagedCache a row whose position is -1 is not touched, and its logits mean nothing."""


@runtime_checkable
class Batchable(Weights, Protocol):
    """Weights that can share a cache and a batch with others, from which they differ by an adapter only."""

    @property
    def batched_with(self) -> object:
        """Equal for all of them."""

    def prefill_each(self, cache: Any, pieces: Sequence[Piece], weights: Sequence[Any]) -> None:
        """`prefill` with the weights of each piece."""

    def decode_each(
        self, cache: Any, ids: torch.Tensor, positions: torch.Tensor, weights: Sequence[Any]
    ) -> torch.Tensor:
        """`decode` with the weights of each row; None for one whose position is -1."""


@runtime_checkable
class Updatable(Protocol):
    """Weights that become those of their model after further training, in place."""

    def update(self, model: Any) -> None:
        """Take over the weights of a model, or of a peft model's adapter."""


def snapshot(
    model: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Weights:
    """Copy the weights of a causal language model, or of a peft model with its adapters merged in. On a GPU the copy of
    a peft model whose base is joined shares it, and keeps the adapter beside it.

    `device` and `dtype` are by default the model's own, on a GPU bfloat16. Raises UnsupportedModel for a model whose
    state is not keys and values of one shape (Mamba, MLA).
    """
    base = base_of(model)
    where = torch.device(device) if device is not None else base.device
    kind = dtype or (torch.bfloat16 if where.type == "cuda" else base.dtype)
    with torch.no_grad():
        if where.type == "cuda":
            from training.engine.weights.llama_cuda import CudaWeights  # Triton comes with torch for CUDA only

            if CudaWeights.supports(base):
                return CudaWeights(model, where, kind)
        elif FusedWeights.supports(base):
            return FusedWeights(base, where, kind)
        from training.engine.weights.any_model import ModuleWeights  # it imports transformers, which made the model

        plain = copy.deepcopy(model).merge_and_unload() if has_adapter(model) else model
        return ModuleWeights(plain, where, kind)
