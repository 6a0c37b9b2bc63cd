"""Replacements for transformers' modules on a GPU that keep less for the backward pass and read memory fewer times."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def make_lean(model: torch.nn.Module) -> None:
    """Give norms and gated MLPs of a Llama-shaped model lean forward methods. Parameters and names stay the same."""
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = partial(_norm_forward, module)
        elif name.endswith("MLP"):
            module.forward = partial(_mlp_forward, module)


def _norm_forward(module: Any, hidden: Tensor) -> Tensor:
    weight: Tensor = module.weight
    return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), module.variance_epsilon)


def _mlp_forward(module: Any, hidden: Tensor) -> Tensor:
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    mixed = _silu_mul(gate.flatten(0, -2), up.flatten(0, -2))
    down: Tensor = module.down_proj(mixed.view(gate.shape))
    return down


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    if gate.device.type != "cuda":
        return F.silu(gate) * up
    from learnloop_service.training.engine.weights.triton_kernels import (
        SiluMul,  # Triton comes with torch for CUDA only
    )

    mixed: Tensor = SiluMul.apply(gate, up)  # type: ignore[no-untyped-call]
    return mixed
