"""Frozen weights that can be sampled from, made from any Hugging Face causal language model."""

import copy
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from training.engine.fused import FusedWeights
from training.engine.generic import ModuleWeights
from training.engine.kv_cache import KVCache, KVShape


class Weights(Protocol):
    """A model at one moment. Training the model it came from does not change it."""

    kv: KVShape
    context: int
    """The most tokens a sequence may have."""
    vocab_size: int
    parameters: int

    def prefill(self, cache: KVCache, row: int, start: int, ids: torch.Tensor) -> None:
        """Write keys and values of `ids` ([n], int64) from position `start` on, in a row that holds `start` tokens."""

    def decode(self, cache: KVCache, ids: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Float32 logits [M, vocab] after one token for each of the first M rows (M and `span` as in attention.py)."""


def snapshot(model: Any, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Weights:
    """Copy the weights of a causal language model, or of a peft model with its adapters merged in.

    `device` and `dtype` are by default the model's own. Raises UnsupportedModel for a model whose state is not keys
    and values of one shape (Mamba, MLA).
    """
    plain: PreTrainedModel = copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model
    where = torch.device(device) if device is not None else plain.device
    kind = dtype or plain.dtype
    with torch.no_grad():
        return FusedWeights(plain, where, kind) if FusedWeights.supports(plain) else ModuleWeights(plain, where, kind)
