"""Frozen weights to sample from, made from any Hugging Face causal language model."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from learnloop_service.training.engine.lanes import Lanes
from learnloop_service.training.engine.weights.adapters import base_of
from learnloop_service.training.engine.weights.kv_cache import KVShape, Piece
from learnloop_service.training.engine.weights.llama_cpu import FusedWeights


class Weights(Protocol):
    """A snapshot of a model. Training the original model does not change it."""

    kv: KVShape
    context: int
    """Longest possible sequence in tokens."""
    vocab_size: int
    parameters: int
    supports_packing: bool
    """Whether the cache is a PagedCache and the pieces of many rows are prefilled in one pass. Otherwise it is a
    KVCache and pieces are prefilled one by one."""
    prefilled_together: int
    """Number of pieces that are prefilled at the same time where they are prefilled one by one."""
    pad_to_multiple_of: int
    """Number of which the rows passed to `decode` must be a multiple."""

    exact_attention: bool
    """Whether attention is the engine's, whose result for a query does not depend on other queries."""

    def matrices(self) -> Sequence[torch.Tensor]:
        """One of each shape of the matrices [out, in] that tokens are multiplied by."""

    def prefill(self, cache: Any, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of each piece into its row."""

    def decode(self, cache: Any, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Decode one token for each of the first M rows and return float32 logits [M, vocab] (`span` as in
        attention.py).

        In a PagedCache a row whose position is -1 is not touched, and its logits are meaningless.
        """


@runtime_checkable
class Batchable(Weights, Protocol):
    """Weights that can share a cache and a batch with others that differ only by an adapter."""

    @property
    def batched_with(self) -> object:
        """An object that is equal for all weights that can share a batch."""

    def prefill_each(self, cache: Any, pieces: Sequence[Piece], weights: Sequence[Any]) -> None:
        """Prefill like `prefill`, with separate weights for each piece."""

    def decode_each(
        self, cache: Any, ids: torch.Tensor, positions: torch.Tensor, weights: Sequence[Any]
    ) -> torch.Tensor:
        """Decode like `decode`, with separate weights for each row, which are None if its position is -1."""


@runtime_checkable
class Updatable(Protocol):
    """Weights that can be replaced in place by those of their model after further training."""

    def update(self, model: Any) -> None:
        """Copy the weights of a model, or of a peft model's adapter."""


def snapshot(
    model: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    lanes: Lanes | None = None,
) -> Weights:
    """Copy the weights of a causal language model, or of a peft model with its adapters merged in. On a GPU, the copy
    of a peft model with a joined base shares the base and keeps only the adapter.

    `device` and `dtype` default to the model's own, on a GPU to bfloat16. On a CPU, the copy of a Llama-shaped model
    computes in `lanes`. Raises UnsupportedModel for a model whose state is not keys and values of one shape (Mamba,
    MLA).
    """
    base = base_of(model)
    target = torch.device(device) if device is not None else base.device
    precision = dtype or (torch.bfloat16 if target.type == "cuda" else base.dtype)
    with torch.no_grad():
        if target.type == "cuda":
            from learnloop_service.training.engine.weights.llama_cuda import (
                CudaWeights,  # Triton comes with torch for CUDA only
            )

            if CudaWeights.supports(base):
                return CudaWeights(model, target, precision)
        elif FusedWeights.supports(base):
            return FusedWeights(base, target, precision, lanes or Lanes())
        from learnloop_service.training.engine.weights import any_model  # imports transformers, which made the model

        modules = any_model.ModuleWeights(any_model.merged(model), target, precision)
        if target.type == "cuda":
            from learnloop_service.training.engine.weights.packed_modules import PackedModules

            if PackedModules.supports(modules):
                return PackedModules(modules)
        return modules
