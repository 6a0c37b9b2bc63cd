"""Attention over packed sequences for transformers' modules."""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from learnloop_service.training.engine.trainer.packing import Packing
from learnloop_service.training.engine.weights.varlen_attention import varlen_attention

ATTENTION = "learnloop_packed"


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    *,
    packing: Packing,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention with transformers' interface: [1, heads, n, D] and [1, kv_heads, n, D] give [1, n, heads, D]."""
    kind = torch.bfloat16 if query.device.type == "cuda" else query.dtype
    query, key, value = (part[0].transpose(0, 1).to(kind) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = varlen_attention(query, packing.gathered(key), packing.gathered(value), packing.segments, scale=scale)
    return mixed[None], None


AttentionInterface.register(ATTENTION, _attention)
